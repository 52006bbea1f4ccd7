"""Estimates of a study with confidence intervals."""
