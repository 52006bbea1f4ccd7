"""Predictions for kinds of device with few measurements or none. Needs numpy; reads no files.

What other kinds of device have in common is the prior; a Gaussian process corrects it by the measurements.
"""
