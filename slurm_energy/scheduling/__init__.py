"""Scheduling policies: the order of pending jobs and the shape in which each job runs.

A shape is one way to run a job: kind of hardware, number of GPUs, batch size and power cap.

All functions are pure and work on column tables. The simulator and the live priority engine call the same
code, so no module here depends on a simulator, a clock, a file or a type of Slurm.
"""

from slurm_energy.scheduling.queue import Alternatives, Jobs, Queue, Users
from slurm_energy.scheduling.ranking import Options, Ranking
from slurm_energy.scheduling.registry import Policy, check_weights, load_file, names, policy, register

__all__ = [
    "Alternatives",
    "Jobs",
    "Options",
    "Policy",
    "Queue",
    "Ranking",
    "Users",
    "check_weights",
    "load_file",
    "names",
    "policy",
    "register",
]
