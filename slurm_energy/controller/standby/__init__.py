"""Several senergyctld processes for one cluster, of which one is active."""
