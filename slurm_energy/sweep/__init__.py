"""Execution of sweeps (runs of one batch script at several settings) as Slurm jobs.

The package submits the runs, reads their records and saves the state of the sweep. `tuning.sweep` decides
which runs are made.
"""
