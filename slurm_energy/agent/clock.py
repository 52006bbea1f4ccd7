"""Time that neither jumps nor stops: since boot, suspend included, with wall time beside it."""

from __future__ import annotations

import time
from pathlib import Path

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
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def unix(self) -> float:
        """Return Unix seconds."""
        return time.time()
