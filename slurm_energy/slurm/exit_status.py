"""Exit status of a job or step as Slurm's accounting shows it: `CODE:SIGNAL`."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Final

OUT_OF_MEMORY_SIGNAL: Final = 125
"""Signal of a step whose memory was exhausted: Slurm's SIG_OOM (253) without the signal flag (128)."""
_SHELL_SIGNAL_OFFSET: Final = 128
_FATAL: Final = frozenset((4, 6, 7, 8, 9, 11, 15))
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV and SIGTERM: signals that usually end a program."""
_TEXT: Final = re.compile(r"(?P<code>\d{1,5}):(?P<signal>\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Exit status of a job or step.

    Attributes:
        code: exit code; sacct subtracts 128 from codes of 128 and more. A shell returns 128 + N for a program
            that signal N ended. A code of 9 therefore means either 9 or 137, which is SIGKILL.
        signal: signal that ended the process; 0 means none.
    """

    code: int
    signal: int = 0

    @classmethod
    def from_text(cls, text: str | None) -> ExitStatus | None:
        """Parse an exit status in sacct's form `CODE:SIGNAL`.

        Return None if the text is missing or has another form.
        """
        match = _TEXT.fullmatch(text or "")
        return cls(int(match["code"]), int(match["signal"])) if match else None

    @property
    def is_success(self) -> bool:
        """Whether the process returned 0."""
        return self.code == 0 and self.signal == 0

    @property
    def is_out_of_memory(self) -> bool:
        """Whether Slurm reports that the memory was exhausted."""
        return self.signal == OUT_OF_MEMORY_SIGNAL

    @property
    def is_killed(self) -> bool:
        """Whether SIGKILL probably ended the process.

        If the process is a shell, the result is also true if SIGKILL ended the shell's last program.
        """
        return signal.SIGKILL in (self.signal, self.code % _SHELL_SIGNAL_OFFSET)

    def __str__(self) -> str:
        """Return the status for readers: `exit code 1`, `signal 11 (SIGSEGV)`."""
        if self.is_out_of_memory:
            return "out of memory"
        if self.signal:
            return f"signal {self.signal}{_name(self.signal)}"
        code = self.code % _SHELL_SIGNAL_OFFSET
        if code in _FATAL:
            return f"exit code {self.code} (from a shell perhaps {signal.Signals(code).name})"
        return f"exit code {self.code}"


def _name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
