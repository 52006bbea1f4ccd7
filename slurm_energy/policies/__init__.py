"""Energy policies: turn the energy flags of a job into hardware settings within the bounds of the site.

All functions are pure: they use no file, no hardware and no clock. The node agent and the controller call the
same functions, so that both accept the same flags.
"""

from slurm_energy.policies.catalogue import PolicyInfo, catalogue, default_policy
from slurm_energy.policies.flags import PolicyRequest, validate_flags
from slurm_energy.policies.plan import SettingsPlan, make_plan
from slurm_energy.policies.scope import WAITING_FOR_CPUS, JobScope

__all__ = [
    "WAITING_FOR_CPUS",
    "JobScope",
    "PolicyInfo",
    "PolicyRequest",
    "SettingsPlan",
    "catalogue",
    "default_policy",
    "make_plan",
    "validate_flags",
]
