"""Validation of the configuration for `senergy config check`, `senergy doctor` and both daemons.

The package `config` checks single keys. This package checks combinations of keys, and whether the keys match
the host and Slurm. A check is a generator of findings. `checker.CHECKS` lists all checks.
"""

from slurm_energy.validation.check_context import DaemonRole
from slurm_energy.validation.checker import CheckedConfig, check_file, load_for_daemon

__all__ = ["CheckedConfig", "DaemonRole", "check_file", "load_for_daemon"]
