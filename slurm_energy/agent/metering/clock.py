"""Time that neither jumps nor stops: since boot, suspend included, wall time beside it. A timer's grid."""

from __future__ import annotations

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
