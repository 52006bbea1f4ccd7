"""Live tuning of the jobs on one node: measurement of windows, operating points, and advice.

A window is a time in which speed and power of a job are measured. The decisions are pure functions in the
package `slurm_energy.tuning`. This package connects the decisions to the sampler, the settings journal and
the controller. All code runs in the worker thread, except the clients of the controller.
"""
