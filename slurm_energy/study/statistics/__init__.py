"""Estimates of a study with confidence intervals, in pure Python."""
