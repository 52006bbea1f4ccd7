"""Many simulations: repetitions, sweeps over parameters, their results and plots."""
