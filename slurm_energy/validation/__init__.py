"""The checker of the configuration: one for `senergy config check`, `senergy doctor` and both daemons.

`config` checks the form of single keys. This package checks how keys go together and whether they fit the
host and Slurm. A check is a generator of findings that is listed in `checker.CHECKS`.
"""

from slurm_energy.validation.check_context import DaemonRole
from slurm_energy.validation.checker import CheckedConfig, check_file, load_for_daemon

__all__ = ["CheckedConfig", "DaemonRole", "check_file", "load_for_daemon"]
