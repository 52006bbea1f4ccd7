"""Everything that is specific to Slurm: its commands, its hooks and its credentials; nothing about energy."""
