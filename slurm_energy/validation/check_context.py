"""What a check is given: the configuration with the places of its keys, and the facts of this host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from slurm_energy.config import Config
from slurm_energy.config.findings import Finding, Severity
from slurm_energy.config.loader import ConfigSource
from slurm_energy.validation.host import Host


class DaemonRole(StrEnum):
    """Daemon for which the configuration is checked."""

    CONTROLLER = "controller"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class CheckContext:
    """A configuration under examination.

    Attributes:
        source: the file as read.
        host: facts of this machine.
        role: the daemon that is about to start here; None for a check on behalf of a person.
        trusted: nobody but root or this user could have written the file, so that code it names may be run.
    """

    source: ConfigSource
    host: Host
    role: DaemonRole | None = None
    trusted: bool = True

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.source.config

    def given(self, section: str, key: str) -> bool:
        """Return whether the file has a key."""
        return (section, key) in self.source.given

    def error(
        self, section: str, key: str, why: str, todo: str = "", *, unavailable: bool = False
    ) -> Finding:
        """Return a finding that stops a daemon."""
        return replace(self.source.reader.finding(section, key, why, todo), unavailable=unavailable)

    def warning(self, section: str, key: str, why: str, todo: str = "") -> Finding:
        """Return a finding that stops nothing."""
        return self.source.reader.finding(section, key, why, todo, Severity.WARNING)

    def unchecked(self, section: str, key: str, why: str, todo: str = "") -> Finding:
        """Return a note that a check was not possible, with the reason."""
        return self.source.reader.finding(section, key, why, todo, Severity.UNCHECKED)


Check = Callable[[CheckContext], Iterator[Finding]]
