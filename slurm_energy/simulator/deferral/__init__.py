"""Simulation of deferrable jobs, and of the cost and emissions of the energy that they use."""
