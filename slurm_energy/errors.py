"""Errors for users. Each error names the fault, its cause and the remedy, and has a documented exit code.

This module contains exception classes and the texts of remedies only. The module neither prints nor logs.
"""

from __future__ import annotations

import shlex
import sys

from slurm_energy.installed_package import install_instruction

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
        what: the fault, with the faulty part (file, key, value, flag).
        why: the cause; empty if unknown.
        todo: the remedy; empty if no remedy is known.
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
        """Lines that a command prints for this error.

        Subclasses that collect several faults return one line per fault.
        """
        return (str(self),)


class UsageError(EnergyError):
    """A value, flag or message from the caller is invalid."""

    exit_code = EXIT_USAGE


class ConfigError(EnergyError):
    """The configuration is invalid; `what` names file, line and key."""

    exit_code = EXIT_CONFIG


class UnavailableError(EnergyError):
    """A required daemon, socket, device or database is not available."""

    exit_code = EXIT_UNAVAILABLE


class ForbiddenError(EnergyError):
    """The user has no right to make the request."""

    exit_code = EXIT_FORBIDDEN


class NotFoundError(EnergyError):
    """The named job, template, policy or node does not exist."""

    exit_code = EXIT_NOT_FOUND


class AlreadyRunningError(EnergyError):
    """Another instance already uses the socket, lock or directory."""

    exit_code = EXIT_ALREADY_RUNNING


def install_extra(extra: str) -> str:
    """Return an instruction to install an optional extra of slurm-energy.

    If slurm-energy was installed from packages of the operating system, the instruction names the package
    that contains the requirements of the extra. Otherwise it is a command for pip of the running Python. It
    names the Python program, because a bare `pip` may belong to another Python. The pip of the operating
    system would refuse to install, or use another package index.

    Args:
        extra: name of the extra in pyproject.toml.
    """
    if (instruction := install_instruction(extra)) is not None:
        return instruction
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install 'slurm-energy[{extra}]'"
