"""Drivers of processors: frequency, energy, power limits and topology, and the CPU time of jobs."""
