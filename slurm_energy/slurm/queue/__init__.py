"""Slurm's queue of pending and running jobs: sources that return it as columns, and changes to jobs."""
