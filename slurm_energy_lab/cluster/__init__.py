"""Real Slurm cluster of emulated nodes on one machine: configuration, namespaces, daemons, life cycle."""
