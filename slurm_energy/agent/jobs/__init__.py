"""The jobs on this node: start, settings, Slurm steps, end, energy record.

Runs in the worker thread only.
"""
