"""Workload profiles: the demand of a training step of a network, computed once and stored in files.

`tracing` computes a profile from a PyTorch module and needs PyTorch; `operators` and `layers` process its
tensors. No other module may import these three when it is loaded.
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
