"""Check of Slurm's configuration: only site factors may determine the order of the queue."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slurm_energy.errors import ConfigError
from slurm_energy.quantities import shown
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.command import Runner, run_command

_LINE: Final = re.compile(r"^(Priority\w+|SLURM_CONF)\s*= ?(.*)$", re.MULTILINE)
_PLUGIN: Final = "PrioritySiteFactorPlugin"
_NO_PLUGIN: Final = frozenset(("", "none", "site_factor/none"))
_WEIGHT: Final = "PriorityWeight"
_AMOUNT: Final = re.compile(r"(?:^|=)0*(?:[1-9]|\.0*[1-9])")
_TODO: Final = "change slurm.conf, then scontrol reconfigure; see docs/priority.md"


def check_weights(
    run: Runner = run_command, locate: Callable[[], Path | None] = conf_files.locate_slurm_conf
) -> None:
    """Check that no setting of Slurm disturbs the job order that slurm-energy sets.

    slurm-energy sets the order by site factors, which are terms of the job priority. The configuration is
    read from slurmctld with one request. PrioritySiteFactorPlugin is read from slurm.conf, because
    `scontrol show config` prints `(null)` for this key (22.05 to 26.05).

    Args:
        run: function that executes a command and returns the output of the command.
        locate: function that returns the path of slurm.conf on this host, or None if there is none.

    Raises:
        ConfigError: slurm.conf cannot be read, or a setting disturbs the order. Such a setting gives a
            weight to another term of the priority, selects another plugin for site factors, prevents
            priorities from falling, or selects a priority plugin without site factors.
        UnavailableError: slurmctld does not answer.
    """
    settings = dict(_LINE.findall(run(["scontrol", "show", "config"])))
    priority_type = settings.get("PriorityType", "")
    if priority_type != "priority/multifactor":
        todo = "set priority/multifactor, then restart slurmctld; see docs/priority.md"
        raise ConfigError(f"PriorityType={shown(priority_type)}", "it has no site factors", todo)
    for name, value in settings.items():
        if name.startswith(_WEIGHT) and _AMOUNT.search(value):
            raise ConfigError(f"{name}={shown(value)}", "it would change the order", _TODO)
    if "INCR_ONLY" in settings.get("PriorityFlags", ""):
        raise ConfigError("PriorityFlags=INCR_ONLY", "no priority could fall", _TODO)
    if (plugin := settings.get(_PLUGIN, "")) not in ("(null)", ""):
        raise ConfigError(f"{_PLUGIN}={shown(plugin)}", "it sets the site factors", _TODO)
    path = locate() or Path(settings.get("SLURM_CONF", "").strip() or "/etc/slurm/slurm.conf")
    if plugin := _site_factor_plugin(path):
        raise ConfigError(f"{path}: {_PLUGIN}={shown(plugin)}", "it sets the site factors", _TODO)


def _site_factor_plugin(path: Path) -> str:
    """Return the value of PrioritySiteFactorPlugin in slurm.conf; an empty value means that no plugin is set.

    Raises:
        ConfigError: slurm.conf, or a file that it includes, cannot be read.
    """
    try:
        values = conf_files.read_settings(path, strict=True).get(_PLUGIN.lower(), [""])
    except OSError as error:
        why = f"{error.strerror or error}, so {_PLUGIN} is unknown"
        raise ConfigError(str(error.filename or path), why, "make it readable, or set SLURM_CONF") from None
    return "" if values[-1].lower() in _NO_PLUGIN else values[-1]
