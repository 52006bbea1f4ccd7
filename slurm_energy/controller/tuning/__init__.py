"""What senergyctld learns from finished runs, and its advice to agents."""
