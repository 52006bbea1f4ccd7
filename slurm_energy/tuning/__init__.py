"""Tuning: from an objective to measured settings. Pure decisions; the agent and the controller apply them."""
