"""What is wrong with lines of an input: counted by kind, the first ones kept with their place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.errors import UsageError

_KEPT = 3


@dataclass(slots=True)
class InputProblems:
    """Lines that were left out, or taken with a doubt.

    Attributes:
        path: the file.
        strict: the first line that would be left out is an error instead.
        counts: lines by what is wrong.
        examples: numbers of the first such lines.
    """

    path: Path
    strict: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[int]] = field(default_factory=dict)
    left_out: int = 0

    def leave_out(self, what: str, lines: Iterable[int]) -> None:
        """Note lines that are not used.

        Raises:
            UsageError: in strict mode.
        """
        listed = list(lines)
        if not listed:
            return
        if self.strict:
            raise UsageError(f"{self.path}:{listed[0]}", what)
        self.left_out += len(listed)
        self.doubt(what, listed)

    def doubt(self, what: str, lines: Iterable[int]) -> None:
        """Note lines that are used although something is odd."""
        listed = list(lines)
        if listed:
            self.counts[what] = self.counts.get(what, 0) + len(listed)
            known = self.examples.setdefault(what, [])
            known += listed[: _KEPT - len(known)]

    def report(self) -> list[str]:
        """Return a line per kind: `FILE:LINE: what (and N more)`."""
        return [
            f"{self.path}:{self.examples[what][0]}: {what}" + (f" (and {n - 1} more)" if n > 1 else "")
            for what, n in self.counts.items()
        ]
