"""The jobs on this node: start, settings, Slurm steps, end, energy record.

All code of this package runs in the worker thread.
"""
