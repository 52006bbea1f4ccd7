"""Interfaces to Slurm: commands, configuration files, hook environments, batch scripts, credentials.

Nothing about energy belongs here.
"""
