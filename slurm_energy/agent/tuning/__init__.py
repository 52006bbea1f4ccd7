"""Live tuning of the jobs on one node: measures windows, applies operating points, and fetches advice.

The decisions are pure and in the package `slurm_energy.tuning`. This package connects them to the sampler,
the settings journal and the controller. All of it runs in the worker thread, except the client of the
controller.
"""
