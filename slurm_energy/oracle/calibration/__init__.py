"""Calibration of the model from measurements: search, residuals and evaluation. Needs numpy and scipy."""
