"""Sweeps: points of a design, metrics of the results, and the choice of points to repeat."""
