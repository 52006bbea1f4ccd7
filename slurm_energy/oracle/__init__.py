"""Predictions of time, power and energy of jobs that have not run: one module per source or part of one."""
