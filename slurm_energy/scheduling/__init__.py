"""Who goes first, and in which shape: pure functions on column tables.

The simulator and the live priority engine call the same code. No simulator, clock, file or Slurm type
comes in here.
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
