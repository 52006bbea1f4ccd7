"""Names of the actions that Slurm needs after changes of its files.

The journal keeps each due action until it is done.
"""

from __future__ import annotations

from typing import Final

RESTART_SLURMCTLD: Final = "restart slurmctld"
RESTART_SLURMD: Final = "restart slurmd"
RECONFIGURE: Final = "scontrol reconfigure"
