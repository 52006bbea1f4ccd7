"""Cluster of emulated nodes with arriving jobs on one virtual clock, without Slurm and without root."""
