"""Emulated nodes and a real Slurm cluster on one machine; nothing outside this package knows of it."""
