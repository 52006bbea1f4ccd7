"""Choice of a cluster for a job: the states of this cluster and of the other ones."""
