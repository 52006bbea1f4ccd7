"""Interfaces to Slurm: commands, configuration files, hook environments, batch scripts, munge credentials.

Nothing in this package is about energy, except for the names of the energy flags.
"""
