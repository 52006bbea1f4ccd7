"""Sweeps: points of a design, metrics of the results, and selection of points to repeat."""
