"""Workload profiles: the demand of a training step of a network, computed once and stored in files.

The module `tracing` computes a profile from a PyTorch module. The modules `operators` and `layers` process
PyTorch tensors. All three need PyTorch. Therefore no other module may import them at load time.
"""

from slurm_energy.oracle.workload.optimizers import OPTIMIZERS, Optimizer, find_optimizer
from slurm_energy.oracle.workload.profile import Affine, WorkloadProfile
from slurm_energy.oracle.workload.profile_files import find_profile, load_profile, profile_names

__all__ = [
    "OPTIMIZERS",
    "Affine",
    "Optimizer",
    "WorkloadProfile",
    "find_optimizer",
    "find_profile",
    "load_profile",
    "profile_names",
]
