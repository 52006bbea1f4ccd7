"""Learning of senergyctld from finished runs, and its advice to agents."""
