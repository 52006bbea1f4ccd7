"""Text, pages and series of power budgets."""
