"""The sampling interval that misses no wrap of a counter."""

from __future__ import annotations

import math
from collections.abc import Iterable

from slurm_energy.devices.driver import EnergyCounter

READINGS_PER_WRAP = 3
"""Readings of a wrapping counter within the shortest time in which it can wrap."""
_MIN_INTERVAL_S = 0.01


def max_sampling_interval_s(counters: Iterable[EnergyCounter]) -> float:
    """Return the longest sampling interval in seconds that reads each counter three times per wrap.

    The result is infinite if no counter wraps. It is never less than a hundredth of a second; a counter that
    wraps faster than that leaves intervals that are marked uncertain.
    """
    periods = [c.range_uj / (c.max_watts * 1e6) for c in counters if c.range_uj is not None]
    return max(_MIN_INTERVAL_S, min(periods, default=math.inf) / READINGS_PER_WRAP)
