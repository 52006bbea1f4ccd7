"""Facts about this host that the checks of the configuration need.

The facts are host names, users, groups and the contents of slurm.conf. No command is run.
"""

from __future__ import annotations

import pwd
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from slurm_energy.slurm import conf_files
from slurm_energy.user_lookup import gid_of


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """The contents of slurm.conf.

    Attributes:
        path: path of slurm.conf; None means that this host has no slurm.conf.
        problem: why slurm.conf could not be read; an empty value means that slurm.conf was read.
        settings: values of all lines with a key, by key in lower case.
    """

    path: Path | None = None
    problem: str = ""
    settings: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def missing(self) -> str:
        """Reason why the settings are unknown; an empty value means that slurm.conf was read."""
        if self.path is None:
            return "no slurm.conf on this host"
        return f"{self.path}: {self.problem}" if self.problem else ""

    def last(self, key: str) -> str | None:
        """Return the last value of a key of slurm.conf; None means that the key is not set."""
        values = self.settings.get(key.lower())
        return values[-1] if values else None

    @property
    def partitions(self) -> frozenset[str]:
        """Names of all partitions."""
        lines = self.settings.get("partitionname", [])
        names = {name for line in lines for name in line.split(maxsplit=1)[0].split(",")}
        return frozenset(name for name in names if name.upper() != "DEFAULT")

    @property
    def controllers(self) -> frozenset[str]:
        """Lower-case host names of the primary and backup slurmctld."""
        lines = [*self.settings.get("slurmctldhost", []), *self.settings.get("controlmachine", [])]
        return frozenset(line.partition("(")[0].strip().lower() for line in lines)


@dataclass(frozen=True, slots=True)
class Host:
    """Facts about a host.

    Attributes:
        names: host names of the host in lower case, short and full.
        slurm: contents of the host's slurm.conf.
    """

    names: frozenset[str]
    slurm: SlurmConf

    def knows_user(self, name: str) -> bool:
        """Return whether a login name exists on this host; every number counts as a uid."""
        return name.isdecimal() or _has_account(name)

    def knows_group(self, name: str) -> bool:
        """Return whether a group name exists on this host."""
        return gid_of(name) is not None

    def is_called(self, name: str) -> bool:
        """Return whether `name` is a name of this host, with or without the domain."""
        name = name.lower().rstrip(".")
        return name in self.names or name.partition(".")[0] in self.names


def this_host() -> Host:
    """Return this host's names and the contents of its slurm.conf."""
    name = socket.gethostname().lower()
    return Host(frozenset({name, name.partition(".")[0]}), _slurm_conf())


@cache
def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True


def _slurm_conf() -> SlurmConf:
    path = conf_files.locate_slurm_conf()
    if path is None:
        return SlurmConf()
    try:
        return SlurmConf(path, settings=conf_files.read_settings(path))
    except OSError as error:
        return SlurmConf(path, error.strerror or str(error))
