"""Live tuning of the jobs on one node.

The package measures the speed and power of jobs in time windows, changes the operating point, and asks the
controller for advice. The decisions are pure functions in the package `slurm_energy.tuning`. This package
connects the decisions to the sampler, the settings journal and the controller. All code runs in the worker
thread, except the clients of the controller.
"""
