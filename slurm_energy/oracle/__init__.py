"""Predictions of run time, power and energy of jobs before they run.

Each source of predictions is a module or a sub-package: the run history, the model of training jobs, and the
nameplate.
"""
