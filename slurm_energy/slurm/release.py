"""Which Slurm is installed here."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_energy.errors import UnavailableError
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Runner, run_command

_VERSION = re.compile(r"^\S*slurm\S* (\d+)\.(\d+)\.(\d+)", re.MULTILINE)


class Release(NamedTuple):
    """A Slurm release; compares as a tuple, e.g. `release() >= (23, 11)`."""

    major: int
    minor: int
    micro: int

    def __str__(self) -> str:
        return f"{self.major:02d}.{self.minor:02d}.{self.micro}"


def release(run: Runner = run_command) -> Release:
    """Ask `sinfo -V` for the installed release (no daemon is asked, but slurm.conf must be found).

    Raises:
        UnavailableError: no sinfo, no slurm.conf, or an answer without a version.
    """
    return parse_release(run(["sinfo", "-V"]), "sinfo -V")


def parse_release(output: str, command: str) -> Release:
    """Read what a program of Slurm answers to -V.

    Raises:
        UnavailableError: an answer without a version.
    """
    match = _VERSION.search(output)
    if match is None:
        raise UnavailableError(command, f"no version in '{shown(output)}'")
    return Release(*(int(part) for part in match.groups()))
