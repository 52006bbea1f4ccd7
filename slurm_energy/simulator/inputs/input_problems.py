"""Record of problems found in input files, and the maximum number of input rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.errors import UsageError

_EXAMPLES = 3
MAX_ROWS = 20_000_000
"""Default of the maximum number of rows of all files of a workload."""


@dataclass(slots=True)
class InputProblems:
    """Problems of input files: lines that were skipped, and lines that were used in spite of a problem.

    Attributes:
        path: path of the file that is being read.
        strict: whether the first line that would be skipped raises an error instead.
        counts: number of lines by file and problem.
        examples: line numbers of the first affected lines, by file and problem.
        skipped: number of skipped lines.
        rejected: pairs of file and problem whose lines were skipped.
        max_rows: maximum number of rows of all files together. The limit exists because all rows are in
            memory at once.
        rows: number of rows read.
    """

    path: Path
    strict: bool = False
    counts: dict[tuple[Path, str], int] = field(default_factory=dict)
    examples: dict[tuple[Path, str], list[int]] = field(default_factory=dict)
    skipped: int = 0
    rejected: set[tuple[Path, str]] = field(default_factory=set)
    max_rows: int = MAX_ROWS
    rows: int = 0

    def add_rows(self, count: int) -> None:
        """Increase the number of rows read by `count`.

        Raises:
            UsageError: there are more than `max_rows` rows.
        """
        self.rows += count
        if self.rows > self.max_rows:
            raise UsageError(
                f"{self.path}",
                f"the workload has more than {self.max_rows} rows",
                "split the file by time, or raise workload.max_rows (about 400 bytes of memory per row)",
            )

    def skip(self, problem: str, lines: Iterable[int]) -> None:
        """Record that lines are skipped.

        Args:
            problem: description of the problem.
            lines: line numbers.

        Raises:
            UsageError: strict mode is on. The error names the first of the lines.
        """
        listed = list(lines)
        if not listed:
            return
        if self.strict:
            raise UsageError(f"{self.path}:{listed[0]}", problem)
        self.skipped += len(listed)
        self.rejected.add((self.path, problem))
        self.warn(problem, listed)

    def warn(self, problem: str, lines: Iterable[int]) -> None:
        """Record that lines are used in spite of a problem.

        The arguments have the same meaning as in `skip`.
        """
        listed = list(lines)
        if listed:
            kind = (self.path, problem)
            self.counts[kind] = self.counts.get(kind, 0) + len(listed)
            examples = self.examples.setdefault(kind, [])
            examples += listed[: _EXAMPLES - len(examples)]

    def report(self) -> list[str]:
        """Return one line of text per file and problem: `FILE:LINE: problem (and N more)`."""
        return [
            f"{path}:{self.examples[path, problem][0]}: {problem}" + (f" (and {n - 1} more)" if n > 1 else "")
            for (path, problem), n in self.counts.items()
        ]

    def table(self) -> list[dict[str, Any]]:
        """Return one dict per file and problem, with the number of affected rows and the first line."""
        return [
            {
                "file": str(path),
                "line": self.examples[path, problem][0],
                "problem": problem,
                "rows": count,
                "rejected": (path, problem) in self.rejected,
            }
            for (path, problem), count in self.counts.items()
        ]
