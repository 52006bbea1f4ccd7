"""Energy policies: turn the energy flags of a job into hardware settings within the bounds of the site.

All functions are pure: they use no file, no hardware and no clock. The node agent and the controller call the
same functions, so that both accept the same flags.
"""

from slurm_energy.policies.catalogue import PolicyInfo, catalogue, default_policy
from slurm_energy.policies.flags import PolicyRequest, validate_flags
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.policies.plan import SettingsPlan, make_plan, point_settings
from slurm_energy.policies.scope import WAITING_FOR_CPUS, JobScope
from slurm_energy.policies.starting_point import StartingPoint, starting_point

__all__ = [
    "UNTUNED",
    "WAITING_FOR_CPUS",
    "JobScope",
    "OperatingPoint",
    "PolicyInfo",
    "PolicyRequest",
    "SettingsPlan",
    "StartingPoint",
    "catalogue",
    "default_policy",
    "make_plan",
    "point_settings",
    "starting_point",
    "validate_flags",
]
