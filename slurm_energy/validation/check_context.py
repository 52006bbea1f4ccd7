"""Input of the checks: the configuration with the lines of its keys, and facts about the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from slurm_energy.config import Config
from slurm_energy.config.findings import Finding, Severity
from slurm_energy.config.loader import ConfigSource
from slurm_energy.validation.host import Host


class DaemonRole(StrEnum):
    """Daemon whose configuration is checked."""

    CONTROLLER = "controller"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class CheckContext:
    """A configuration to check, with the facts about the host.

    Attributes:
        source: the parsed file.
        host: facts about the host.
        role: the daemon that is about to start here; None: a user checks the file.
        trusted: only root or this user could have written the file, so code that it names may be executed.
    """

    source: ConfigSource
    host: Host
    role: DaemonRole | None = None
    trusted: bool = True

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.source.config

    def is_set(self, section: str, key: str) -> bool:
        """Return whether the file sets a key."""
        return (section, key) in self.source.keys

    def error(
        self, section: str, key: str, why: str, todo: str = "", *, unavailable: bool = False
    ) -> Finding:
        """Return a finding that stops a daemon."""
        return replace(self.source.reader.finding(section, key, why, todo), unavailable=unavailable)

    def warning(self, section: str, key: str, why: str, todo: str = "") -> Finding:
        """Return a finding that stops nothing."""
        return self.source.reader.finding(section, key, why, todo, Severity.WARNING)

    def unchecked(self, section: str, key: str, why: str, todo: str = "") -> Finding:
        """Return a note that a check was skipped, with the reason."""
        return self.source.reader.finding(section, key, why, todo, Severity.UNCHECKED)


Check = Callable[[CheckContext], Iterator[Finding]]
