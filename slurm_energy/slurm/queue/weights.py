"""Whether slurm.conf lets site factors alone decide on the order of the queue."""

from __future__ import annotations

import re
from typing import Final

from slurm_energy.errors import ConfigError
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Runner, run_command

_LINE: Final = re.compile(r"^(Priority\w+)\s*= ?(.*)$", re.MULTILINE)
_WEIGHT: Final = "PriorityWeight"
_AMOUNT: Final = re.compile(r"(?:^|=)0*(?:[1-9]|\.0*[1-9])")
_TODO: Final = "change slurm.conf, then scontrol reconfigure; see docs/priority.md"


def check_weights(run: Runner = run_command) -> None:
    """Ask slurmctld for its configuration, in one request.

    Raises:
        ConfigError: a setting that would add to site factors, exchange them, or keep priorities from falling.
        UnavailableError: slurmctld does not answer.
    """
    settings = dict(_LINE.findall(run(["scontrol", "show", "config"])))
    kind = settings.get("PriorityType", "")
    if kind != "priority/multifactor":
        todo = "set priority/multifactor, then restart slurmctld; see docs/priority.md"
        raise ConfigError(f"PriorityType={shown(kind)}", "it knows no site factors", todo)
    for name, value in settings.items():
        if name.startswith(_WEIGHT) and _AMOUNT.search(value):
            raise ConfigError(f"{name}={shown(value)}", "it would move jobs from their places", _TODO)
    if "INCR_ONLY" in settings.get("PriorityFlags", ""):
        raise ConfigError("PriorityFlags=INCR_ONLY", "no job could fall behind", _TODO)
    plugin = settings.get("PrioritySiteFactorPlugin", "(null)")
    if plugin not in ("(null)", ""):
        raise ConfigError(f"PrioritySiteFactorPlugin={shown(plugin)}", "it sets the site factors", _TODO)
