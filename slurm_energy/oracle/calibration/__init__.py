"""Calibration of the analytical training model: fitting its parameters to measured training steps.

Needs numpy and scipy.
"""
