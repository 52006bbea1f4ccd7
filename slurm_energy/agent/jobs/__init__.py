"""Handling of the jobs on this node by the agent.

The package handles the start, the settings, the Slurm steps, the end and the energy record of each job. All
its code runs in the worker thread.
"""
