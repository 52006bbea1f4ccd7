"""Power budgets: which limits apply, and which power limit each device gets. Pure decisions without I/O."""
