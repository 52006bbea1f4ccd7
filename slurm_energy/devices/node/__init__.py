"""Drivers of node power meters and BMCs, and the model of memory power."""
