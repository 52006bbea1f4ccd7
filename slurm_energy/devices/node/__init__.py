"""Drivers of power meters and BMCs (management controllers) of nodes, and the model of memory power."""
