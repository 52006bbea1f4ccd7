"""Time since boot, which neither jumps nor stops, and wall-clock time."""

from __future__ import annotations

import time
from pathlib import Path

_read, _BOOTTIME, _MONOTONIC = time.clock_gettime, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """Boot time in seconds for intervals, Unix seconds for people.

    Attributes:
        boot_id: identifies the boot, so that boot times of different boots are never mixed.
    """

    def __init__(self) -> None:
        try:
            self.boot_id = _BOOT_ID.read_text().strip()
        except OSError:
            self.boot_id = "unknown"

    def boottime(self) -> float:
        """Return seconds since boot, including time in suspend."""
        return _read(_BOOTTIME)

    def suspended(self) -> float:
        """Return how many seconds since boot the machine was suspended.

        A delay between the two readings makes the result smaller, never larger.
        """
        return _read(_BOOTTIME) - _read(_MONOTONIC)

    def unix(self) -> float:
        """Return Unix seconds."""
        return time.time()
