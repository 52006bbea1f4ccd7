"""Errors that people read: what is wrong, why, and what to do; each with a documented exit code.

Only plain exception classes and what they advise live here; nothing in this module prints or logs.
"""

from __future__ import annotations

import shlex
import sys

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_CONFIG = 3
EXIT_UNAVAILABLE = 4
EXIT_FORBIDDEN = 5
EXIT_NOT_FOUND = 6
EXIT_ALREADY_RUNNING = 7


class EnergyError(Exception):
    """Base of all errors that end a command with one line.

    Args:
        what: the fact, naming the faulty part (file, key, value, flag).
        why: the cause, if known.
        todo: what the reader can do about it.
    """

    exit_code = EXIT_FAILURE

    def __init__(self, what: str, why: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.todo = todo

    def __str__(self) -> str:
        parts = [part for part in (self.what, self.why, self.todo) if part]
        return ": ".join(parts).replace("\n", " ")

    @property
    def lines(self) -> tuple[str, ...]:
        """What a command prints: one line, or one per fault where several were found at once."""
        return (str(self),)


class UsageError(EnergyError):
    """A value, flag or message that a caller gave cannot be accepted."""

    exit_code = EXIT_USAGE


class ConfigError(EnergyError):
    """The configuration is wrong; `what` names file, line and key."""

    exit_code = EXIT_CONFIG


class UnavailableError(EnergyError):
    """A daemon, socket, device or database that is needed cannot be reached."""

    exit_code = EXIT_UNAVAILABLE


class ForbiddenError(EnergyError):
    """The caller's identity does not allow the request."""

    exit_code = EXIT_FORBIDDEN


class NotFoundError(EnergyError):
    """The named job, template, policy or node is not known."""

    exit_code = EXIT_NOT_FOUND


class AlreadyRunningError(EnergyError):
    """Another instance holds the socket, lock or directory."""

    exit_code = EXIT_ALREADY_RUNNING


def install_extra(extra: str) -> str:
    """Return the command that installs what an extra needs for the Python that runs this.

    A bare `pip` may belong to another Python: the system's refuses, or would look for the name elsewhere.
    """
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install 'slurm-energy[{extra}]'"
