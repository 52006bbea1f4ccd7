"""The live queue of Slurm, which is ranked with a scheduling policy.

The package ranks the pending jobs and publishes their order to Slurm.
"""
