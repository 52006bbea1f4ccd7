"""A progress line on standard error, shown on terminals only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final

_INTERVAL_S: Final = 0.1
_WIDTH: Final = 30


class ProgressLine:
    """Context manager that shows on one line of the terminal which part of a long command is done.

    Args:
        label: text that names the work, e.g. `writing`.
        unit: noun for the counted things, in the plural.
    """

    def __init__(self, label: str, unit: str) -> None:
        self._label, self._unit = label, unit
        self._shown = sys.stderr.isatty()
        self._next_s = 0.0
        self._width = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._show("")
            print("\r", end="", file=sys.stderr, flush=True)

    def report(self, done: int, total: int = 0) -> None:
        """Show the amount of completed work. A total of 0 means that the total is unknown."""
        if not self._shown or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _INTERVAL_S
        if total <= 0:
            self._show(f"{self._label} {done} {self._unit}")
            return
        filled = min(_WIDTH, _WIDTH * done // total)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        self._show(f"{self._label} [{bar}] {100 * done // total:3d} %  {done}/{total} {self._unit}")

    def _show(self, text: str) -> None:
        print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)
