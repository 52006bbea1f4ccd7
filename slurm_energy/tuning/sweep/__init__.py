"""Sweeps: the points of a design, the metrics of results, and the selection of points to repeat."""
