"""Predictions of run time, power and energy of jobs before they run.

There are three sources of predictions, each in its own module or sub-package: the history of earlier runs, an
analytical model of training jobs, and the design power of the requested hardware (nameplate).
"""
