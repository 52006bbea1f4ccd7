"""Power budgets in senergyctld: polls of nodes, decisions, admission of jobs, routes."""
