"""Findings of runs in senergyctld, alerts about these findings, and trials of adjustments."""
