"""Drivers of power meters and BMCs of nodes, and the model of the power of memory."""
