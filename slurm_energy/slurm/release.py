"""The release of the Slurm that is installed on this host."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_energy.errors import UnavailableError
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Runner, run_command

_VERSION = re.compile(r"^\S*slurm\S* (\d+)\.(\d+)\.(\d+)", re.MULTILINE)


class Release(NamedTuple):
    """A Slurm release. Releases compare as tuples, for example `release() >= (23, 11)`."""

    major: int
    minor: int
    micro: int

    @property
    def series(self) -> str:
        """Release series, for example `22.05`. SPANK plugins are built for one series."""
        return f"{self.major:02d}.{self.minor:02d}"

    def __str__(self) -> str:
        return f"{self.major:02d}.{self.minor:02d}.{self.micro}"


def release(run: Runner = run_command) -> Release:
    """Return the installed Slurm release, read with `sinfo -V`.

    This command needs slurm.conf, but no running daemon.

    Raises:
        UnavailableError: sinfo or slurm.conf is missing, or the output has no version.
    """
    return parse_release(run(["sinfo", "-V"]), "sinfo -V")


def parse_release(output: str, command: str) -> Release:
    """Return the release in the output of a Slurm program with the option -V.

    Args:
        output: output of the program.
        command: command that printed the output, for the error.

    Raises:
        UnavailableError: the output has no version.
    """
    match = _VERSION.search(output)
    if match is None:
        raise UnavailableError(command, f"no version in '{shown(output)}'")
    return Release(*(int(part) for part in match.groups()))
