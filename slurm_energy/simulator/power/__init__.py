"""Power in the simulator.

The package contains the power of nodes over time, power budgets, and nodes that power down and up.
"""
