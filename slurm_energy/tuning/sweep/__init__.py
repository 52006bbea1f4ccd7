"""Sweeps: runs of a program at many combinations (points) of settings.

The package creates the points, computes the metrics of the results, and selects the points to repeat.
"""
