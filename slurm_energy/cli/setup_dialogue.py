"""Conversation of `senergy setup` with the administrator on a terminal."""

from __future__ import annotations

import sys

from slurm_energy.cli.output import emit, emit_verbatim
from slurm_energy.errors import UsageError
from slurm_energy.setup.changes import FileChange
from slurm_energy.setup.removal import FileReversal


class TerminalDialogue:
    """Interface of `senergy setup` to the administrator at a terminal.

    It prints lines and diffs. It asks questions unless the answers were given in advance.

    Args:
        agree: answer every question with yes.
        quiet: print nothing, because the result is printed as JSON.
    """

    def __init__(self, *, agree: bool, quiet: bool = False) -> None:
        self._agree, self._quiet = agree, quiet

    def say(self, line: str) -> None:
        """Print a line."""
        if not self._quiet:
            emit([line])
            sys.stdout.flush()

    def show_change(self, change: FileChange) -> None:
        """Print the diff of a change with its reason."""
        if not self._quiet:
            emit(["", f"{change.path}: {change.reason}"])
            emit_verbatim(change.diff())

    def show_reversal(self, reversal: FileReversal) -> None:
        """Print what undoing a change will do to a file: the diff, or that the file is removed."""
        if self._quiet:
            return
        if reversal.data is None:
            emit([f"removing {reversal.file.path}"])
            return
        emit(["", f"restoring {reversal.file.path}"])
        emit_verbatim(reversal.diff())

    def show_planned_reversal(self, reversal: FileReversal) -> None:
        """Print how a file would be restored."""
        path = reversal.file.path
        if self._quiet:
            return
        if reversal.keep:
            emit([f"{path} {reversal.remark}"] if reversal.remark else [])
            return
        if reversal.data is None:
            emit([f"would remove {path}"])
        else:
            emit(["", f"would restore {path}"])
            emit_verbatim(reversal.diff())
        if reversal.remark:
            emit([f"by hand: {path}: {reversal.remark}"])

    def confirm(self, question: str) -> bool:
        """Return whether the administrator agrees. An empty answer means no."""
        return self._agree or self.ask(f"{question} [y/N]", "n").lower() in ("y", "yes")

    def ask(self, question: str, default: str) -> str:
        """Return the administrator's answer to a question; the default if the answer is empty."""
        print(f"{question} ", end="", flush=True)
        try:
            return input().strip() or default
        except EOFError:
            raise UsageError("no answer", "the input ended", "answer on a terminal, or use --yes") from None
