"""Time that neither jumps nor stops: since boot, suspend included, wall time beside it. A timer's grid."""

from __future__ import annotations

import math
import time
from pathlib import Path

_read, _BOOTTIME, _MONOTONIC = time.clock_gettime, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """Seconds since boot for intervals, Unix seconds for people.

    Attributes:
        boot_id: tells boots apart, so that seconds of different boots are never mixed.
    """

    def __init__(self) -> None:
        try:
            self.boot_id = _BOOT_ID.read_text().strip()
        except OSError:
            self.boot_id = "unknown"

    def boottime(self) -> float:
        """Return seconds since boot, time in suspend included."""
        return _read(_BOOTTIME)

    def suspended(self) -> float:
        """Return how many seconds of these the machine was suspended.

        A delay between the two readings makes it less, never more.
        """
        return _read(_BOOTTIME) - _read(_MONOTONIC)

    def unix(self) -> float:
        """Return Unix seconds."""
        return time.time()


class Grid:
    """The moments `origin + n x interval_s`. One that was missed is left out and never made up for.

    Args:
        origin: a moment on the grid, on any clock that does not jump.
        interval_s: seconds between moments.
    """

    def __init__(self, origin: float, interval_s: float) -> None:
        self.interval_s = interval_s
        self._origin = origin
        self._last = 0

    def next(self, now: float) -> float:
        """Return the first moment after `now` that was not returned before."""
        passed = math.floor((now - self._origin) / self.interval_s)
        self._last = max(self._last, passed) + 1
        return self._origin + self._last * self.interval_s
