"""Findings of runs in senergyctld, alerts about them, and trials of adjustments."""
