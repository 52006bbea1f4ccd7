"""Learning from finished runs in senergyctld, and tuning advice to agents."""
