"""Drivers of power meters and BMCs (management controllers) of nodes.

The package also contains the model of memory power.
"""
