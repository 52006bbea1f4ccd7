"""Slurm's queue of pending and running jobs.

The package has sources that return the queue as columns, and functions that change jobs.
"""
