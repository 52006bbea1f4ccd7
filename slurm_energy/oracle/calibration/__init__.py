"""Calibration of the analytical training model: fitting its parameters to measured training steps.

The sub-package needs numpy and scipy.
"""
