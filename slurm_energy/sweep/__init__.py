"""Execution of sweeps as Slurm jobs: submission, records, saved state. `tuning.sweep` decides on runs."""
