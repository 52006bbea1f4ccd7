"""Settings of slurm.conf on a host without this file.

On a host without slurm.conf, Slurm's commands fetch the file from slurmctld (configless).
"""

from __future__ import annotations

import re
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.command import CommandRunner, Runner
from slurm_energy.slurm.installation import Installation

_TIMEOUT_S: Final = 20.0
_LINE: Final = re.compile(r"^(?P<key>\w+)(?:\[\d+\])?\s*=\s*(?P<value>.*?)\s*$", re.MULTILINE)
_KEYS: Final = frozenset(
    ("clustername", "slurmctldhost", "prologflags", "slurmuser", "authinfo", "jobsubmitplugins")
)


def fetched_settings(installation: Installation, run: Runner | None = None) -> dict[str, list[str]]:
    """Return the settings that setup needs, from the output of `scontrol show config`.

    The result is empty if slurmctld does not answer.

    Args:
        installation: programs of Slurm.
        run: function that executes a command and returns the output of the command.
    """
    program = installation.prefix / "bin/scontrol"
    try:
        output = (run or CommandRunner(_TIMEOUT_S))([str(program), "show", "config"])
    except UnavailableError:
        return {}
    settings: dict[str, list[str]] = {}
    for match in _LINE.finditer(output):
        key, value = match["key"].lower(), match["value"]
        if key in _KEYS and value not in ("", "(null)"):
            settings.setdefault(key, []).append(value)
    return settings if "clustername" in settings else {}
