"""Power of nodes over time, power budgets, and nodes that power down and up in a simulation."""
