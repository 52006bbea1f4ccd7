"""Drivers of processors: frequency, energy and power limits, topology, CPU time of jobs."""
