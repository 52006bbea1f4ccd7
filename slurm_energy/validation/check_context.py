"""Input of the checks of `energy.toml`: its values with line numbers, and facts about the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slurm_energy.config import Config
from slurm_energy.config.findings import Finding, Severity
from slurm_energy.config.loader import ConfigSource
from slurm_energy.validation.host import Host


class DaemonRole(StrEnum):
    """The daemon for which a configuration is checked: senergyctld (controller) or senergyd (node)."""

    CONTROLLER = "controller"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class CheckContext:
    """A configuration to check, with the facts about the host.

    Attributes:
        source: the parsed configuration file.
        host: facts about the host.
        role: the daemon that is about to start on this host; None means that a user checks the file.
        idle_watts: power without any job, as senergyctld reports it. The key consists of name, scope and
            scope value of a budget. An empty value means unknown.
        trusted: whether only root or this process's user could have written the file. If so, code that the
            file names may be executed.
    """

    source: ConfigSource
    host: Host
    role: DaemonRole | None = None
    trusted: bool = True
    idle_watts: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The configuration that is checked."""
        return self.source.config

    def is_set(self, section: str, key: str) -> bool:
        """Return whether the configuration file sets a key."""
        return (section, key) in self.source.keys

    def error(
        self, section: str, key: str, why: str, todo: str = "", *, unavailable: bool = False
    ) -> Finding:
        """Return a finding of severity `ERROR`. Such a finding prevents the start of daemons.

        Args:
            section: section of the configuration.
            key: key in the section; an empty value means the whole section.
            why: description of the fault.
            todo: the remedy; an empty value means that the remedy follows from the fault.
            unavailable: whether the configuration is valid, but a directory or database in it is currently
                not available.
        """
        return replace(self.source.reader.finding(section, key, why, todo), unavailable=unavailable)

    def warning(self, section: str, key: str, why: str, todo: str = "") -> Finding:
        """Return a finding of severity `WARNING`; the arguments have the same meaning as in `error`."""
        return self.source.reader.finding(section, key, why, todo, Severity.WARNING)

    def unchecked(self, section: str, key: str, why: str, todo: str = "") -> Finding:
        """Return a finding of severity `UNCHECKED`: a check was skipped, for the reason `why`."""
        return self.source.reader.finding(section, key, why, todo, Severity.UNCHECKED)


Check = Callable[[CheckContext], Iterator[Finding]]
