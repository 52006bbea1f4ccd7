"""Power budgets: limits in force, and the power limit of each device. Pure decisions without I/O."""
