"""Choice of a sampling interval.

The interval must be short enough to notice every wrap of an energy counter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from slurm_energy.devices.driver import EnergyCounter

READINGS_PER_WRAP = 3
"""Number of readings of a counter within the minimum time between two wraps."""
_MIN_INTERVAL_S = 0.01


def max_sampling_interval_s(counters: Iterable[EnergyCounter]) -> float:
    """Return the longest interval in seconds with which all counters are read three times per wrap.

    The result is infinite if no counter wraps, and at least 0.01 s. If a counter can wrap too fast even for
    this interval, the sampler marks the counter's energy as uncertain.
    """
    return max(_MIN_INTERVAL_S, min_wrap_s(counters) / READINGS_PER_WRAP)


def min_wrap_s(counters: Iterable[EnergyCounter]) -> float:
    """Return the shortest possible time in seconds between two wraps of a counter.

    This time is the range of the counter, or of a register that its driver unwraps, divided by the counter's
    `max_watts`. The result is infinite if no counter wraps.
    """
    return min(
        (
            range_uj / (counter.max_watts * 1e6)
            for counter in counters
            for range_uj in (counter.range_uj, counter.unread_range_uj)
            if range_uj is not None
        ),
        default=math.inf,
    )
