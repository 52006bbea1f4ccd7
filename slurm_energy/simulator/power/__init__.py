"""Power in a simulation: power of nodes over time, power budgets, and nodes that power down and up."""
