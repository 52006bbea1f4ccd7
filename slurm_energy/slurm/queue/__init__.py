"""Slurm's queue of pending and running jobs: readers that yield one set of columns, and changes to jobs."""
