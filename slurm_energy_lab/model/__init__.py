"""Physics of an emulated node in pure Python: hardware profiles, compute kernels and `NodeModel`.

The package opens only profile files (`profile_file`), and uses no socket, process or clock. The
equations are in docs/lab-physics.md.
"""

from slurm_energy_lab.model.job_usage import UsageByJob
from slurm_energy_lab.model.kernels import kernel_names
from slurm_energy_lab.model.node import NodeModel
from slurm_energy_lab.model.problem_size import default_size
from slurm_energy_lab.model.profile import (
    CacheLevel,
    Constraint,
    CpufreqProfile,
    CpuProfile,
    GpuProfile,
    MemoryProfile,
    NodeProfile,
    OtherProfile,
    RaplProfile,
)
from slurm_energy_lab.model.profile_file import UNKNOWN_PROFILE, draw_profile, load_profile, profile_names
from slurm_energy_lab.model.programs import program_names
from slurm_energy_lab.model.requests import FrequencyRequest, GpuState, KernelRequest, KernelResult

__all__ = [
    "UNKNOWN_PROFILE",
    "CacheLevel",
    "Constraint",
    "CpuProfile",
    "CpufreqProfile",
    "FrequencyRequest",
    "GpuProfile",
    "GpuState",
    "KernelRequest",
    "KernelResult",
    "MemoryProfile",
    "NodeModel",
    "NodeProfile",
    "OtherProfile",
    "RaplProfile",
    "UsageByJob",
    "default_size",
    "draw_profile",
    "kernel_names",
    "load_profile",
    "profile_names",
    "program_names",
]
