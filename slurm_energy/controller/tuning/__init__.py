"""Learning in senergyctld from finished runs. The agents receive the results as tuning advice."""
