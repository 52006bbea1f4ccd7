"""Interface between setup and the administrator, and the result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from slurm_energy.errors import EXIT_OK
from slurm_energy.setup.changes import FileChange
from slurm_energy.setup.removal import FileReversal


class Dialogue(Protocol):
    """Conversation with the administrator."""

    def say(self, line: str) -> None:
        """Print a line."""

    def show_change(self, change: FileChange) -> None:
        """Print the diff of a change with its reason."""

    def show_reversal(self, reversal: FileReversal) -> None:
        """Print the diff of a change that is taken back."""

    def confirm(self, question: str) -> bool:
        """Return whether the administrator agrees."""


@dataclass
class SetupOutcome:
    """Result of a run of setup or undo.

    Attributes:
        changed: files, units and restarts that were changed or made; empty if nothing was to do.
        by_hand: what remains to be done by the administrator.
        kept: files and data that were not deleted, with the reason.
        declined: whether the user declined a change of a file of Slurm.
        exit_code: exit code of the command.
    """

    changed: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    declined: bool = False
    exit_code: int = EXIT_OK
