"""Predictions for kinds of device with few measurements or none. Needs numpy; reads no files.

The common properties of other kinds of device are the prior. A Gaussian process corrects it by the
measurements.
"""
