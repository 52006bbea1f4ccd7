"""Interfaces to Slurm: commands, configuration files, hook environments, batch scripts, munge credentials.

The only part of this package that concerns energy is the names of the energy flags.
"""
