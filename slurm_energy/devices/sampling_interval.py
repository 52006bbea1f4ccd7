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

    The shortest possible time between two wraps of a counter is its range divided by its `max_watts`. The
    result is infinite if no counter wraps, and at least 0.01 s. If a counter can wrap too fast even for this
    interval, the sampler marks the counter's energy as uncertain.
    """
    periods = [c.range_uj / (c.max_watts * 1e6) for c in counters if c.range_uj is not None]
    return max(_MIN_INTERVAL_S, min(periods, default=math.inf) / READINGS_PER_WRAP)
