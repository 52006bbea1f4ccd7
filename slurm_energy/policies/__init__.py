"""Energy policies: from what a job asks to an ordered list of settings, within the site's bounds.

Pure functions on plain data: no file, no hardware, no clock. The same checks serve the node agent and
the controller.
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
