"""Choice of a cluster for a job.

The choice compares the states of this cluster and of other clusters.
"""
