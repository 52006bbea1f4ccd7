"""Campaigns of simulations: repetitions, sweeps over parameters, and the tables and plots of the results."""
