"""Several senergyctld for one cluster, of which one is active."""
