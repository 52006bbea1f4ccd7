"""Deferrable jobs in a simulation, and the costs of its energy."""
