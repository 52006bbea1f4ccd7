"""Findings of the configuration check: one per invalid or questionable key, with file and line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slurm_energy.errors import EXIT_UNAVAILABLE, ConfigError


class Severity(StrEnum):
    """Severity of a finding.

    Attributes:
        ERROR: daemons do not start with this configuration.
        WARNING: daemons start with this configuration.
        UNCHECKED: a check was skipped.
    """

    ERROR = "error"
    WARNING = "warning"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the configuration check.

    Attributes:
        severity: severity of the finding.
        key: dotted key (`controller.listen`), section (`[agnet]`), or empty for the whole file.
        why: the fault, with the value.
        todo: the remedy; empty if the remedy follows from the fault.
        file: path of the configuration file; an empty value means that the built-in defaults were checked.
        line: line of the key, counted from 1; None means that the key is not in the file.
        unavailable: whether the configuration is valid, but a directory or database in it is currently not
            available.
    """

    severity: Severity
    key: str
    why: str
    todo: str = ""
    file: str = ""
    line: int | None = None
    unavailable: bool = False

    @property
    def location(self) -> str:
        """File and line in the format FILE:LINE that compilers use."""
        return (self.file or "configuration") + (f":{self.line}" if self.line else "")

    @property
    def text(self) -> str:
        """File, line, key, fault and remedy in one line."""
        return str(ConfigError(": ".join(filter(None, (self.location, self.key))), self.why, self.todo))

    @property
    def line_with_severity(self) -> str:
        """File, line, severity, key, fault and remedy in one line, in the format that compilers use."""
        parts = (self.location, str(self.severity), self.key, self.why, self.todo)
        return ": ".join(filter(None, parts)).replace("\n", " ")

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object, for commands with the option `--json`."""
        return {
            "severity": str(self.severity),
            "file": self.file or None,
            "line": self.line,
            "key": self.key or None,
            "why": self.why,
            "todo": self.todo or None,
        }


class InvalidConfigError(ConfigError):
    """A configuration has errors. One exception reports all errors.

    Args:
        findings: findings, at least one with severity `ERROR`. Findings of other severities are ignored.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(errors(findings))
        first, others = self.findings[0], len(self.findings) - 1
        super().__init__(": ".join(filter(None, (first.location, first.key))), first.why, first.todo)
        self._others = others
        if all(finding.unavailable for finding in self.findings):
            self.exit_code = EXIT_UNAVAILABLE

    @property
    def lines(self) -> tuple[str, ...]:
        """One line of text per error."""
        return tuple(finding.text for finding in self.findings)

    def __str__(self) -> str:
        more = f" ({self._others} more: senergy config check)" if self._others else ""
        return super().__str__() + more


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that stop a daemon: those with severity `ERROR`."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def warnings(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with severity `WARNING`."""
    return [finding for finding in findings if finding.severity is Severity.WARNING]


def require_valid(findings: Sequence[Finding]) -> None:
    """Raise an error if at least one finding has severity `ERROR`.

    Raises:
        InvalidConfigError: contains all errors.
    """
    if errors(findings):
        raise InvalidConfigError(findings)
