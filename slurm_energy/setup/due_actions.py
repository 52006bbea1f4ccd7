"""Names of the actions that Slurm needs after its files have changed, such as a restart.

The journal of setup keeps each action until the action is done.
"""

from __future__ import annotations

from typing import Final

RESTART_SLURMCTLD: Final = "restart slurmctld"
CHECK_SLURMCTLD: Final = "check slurmctld"
"""Proof that slurmctld runs with the changed files, after setup has restarted it with them."""
RESTART_SLURMD: Final = "restart slurmd"
RECONFIGURE: Final = "scontrol reconfigure"
