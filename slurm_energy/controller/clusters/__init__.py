"""Choice of a cluster for a job, from the states of this cluster and of other clusters."""
