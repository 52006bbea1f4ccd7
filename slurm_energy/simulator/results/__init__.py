"""Results of simulations: totals, tables, files and plots."""
