"""Names of the actions that Slurm needs after its files have changed, such as a restart.

The journal of setup keeps each action until the action is done.
"""

from __future__ import annotations

from typing import Final

RESTART_SLURMCTLD: Final = "restart slurmctld"
RESTART_SLURMD: Final = "restart slurmd"
RECONFIGURE: Final = "scontrol reconfigure"
