"""Interface through which setup communicates with the administrator.

The module also defines the result of a run of setup or undo.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from slurm_energy.errors import EXIT_OK
from slurm_energy.setup.changes import FileChange
from slurm_energy.setup.removal import FileReversal


class Dialogue(Protocol):
    """Interface by which setup prints messages and asks the administrator questions."""

    def say(self, line: str) -> None:
        """Print a line."""

    def show_change(self, change: FileChange) -> None:
        """Print the diff and the reason of a change."""

    def show_reversal(self, reversal: FileReversal) -> None:
        """Print the diff that undoes a change."""

    def confirm(self, question: str) -> bool:
        """Ask the administrator a question and return whether the answer is yes."""


@dataclass
class SetupOutcome:
    """Result of a run of setup or undo.

    Attributes:
        changed: changed files and units, and restarts of daemons; empty if nothing had to be done.
        by_hand: steps that the administrator must still do.
        kept: files and data that were not deleted, each with the reason.
        declined: whether the user declined a change of a file of Slurm.
        exit_code: exit code of the command.
    """

    changed: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    declined: bool = False
    exit_code: int = EXIT_OK
