"""Results of simulations as figures, tables, files and plots."""
