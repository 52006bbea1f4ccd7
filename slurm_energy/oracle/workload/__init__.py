"""What a training step asks of a device: computed once from the module's graph, shipped as small files.

Only `tracing`, `operators` and `layers` need PyTorch; nothing else may import them when it is loaded.
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
