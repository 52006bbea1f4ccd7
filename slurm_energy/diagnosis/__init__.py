"""Diagnosis of jobs: signals, step times, summaries, and findings about wasted time and energy.

Pure functions on data: no I/O, no clock, no numpy.
"""
