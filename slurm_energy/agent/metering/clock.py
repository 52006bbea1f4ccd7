"""Clock of the agent: seconds since boot for measurement, Unix time for records.

The time since boot never jumps and also advances while the machine is suspended.
"""

from __future__ import annotations

import time
from pathlib import Path

_read, _BOOTTIME, _MONOTONIC = time.clock_gettime, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """The machine's clock: seconds since boot for intervals, Unix seconds for records.

    Attributes:
        boot_id: the kernel's random identifier of this boot, or "unknown" if it cannot be read. Times in
            seconds since boot are comparable only within one boot.
    """

    def __init__(self) -> None:
        try:
            self.boot_id = _BOOT_ID.read_text().strip()
        except OSError:
            self.boot_id = "unknown"

    def boottime(self) -> float:
        """Return the seconds since boot, including the time for which the machine was suspended."""
        return _read(_BOOTTIME)

    def suspended(self) -> float:
        """Return the total seconds for which the machine was suspended since boot.

        The result is the difference of two clocks, which are read one after the other. A delay between the
        two readings makes the result smaller, never larger.
        """
        return _read(_BOOTTIME) - _read(_MONOTONIC)

    def unix(self) -> float:
        """Return the wall-clock time in Unix seconds."""
        return time.time()
