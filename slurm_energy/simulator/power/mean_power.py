"""Mean and peak power in intervals of equal length.

The values are for plots of simulations in which the power changes often.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Floats


def power_by_interval(
    times_s: Floats, watts: Floats, end_s: float, count: int
) -> tuple[float, list[float], list[float]]:
    """Return mean and peak power in `count` equal intervals from 0 to `end_s`.

    Args:
        times_s: ascending times in seconds, beginning with 0. Each value of `watts` holds from its time on.
        watts: power, one value per time.
        end_s: end of the last interval.
        count: number of intervals.

    Returns:
        Length of an interval in seconds, and the mean and the peak watts of each interval.
    """
    if not end_s > 0:
        return 1.0, [float(watts[-1])], [float(watts[-1])]
    edges = np.linspace(0.0, end_s, count + 1)
    within = times_s < end_s
    times, power = np.append(times_s[within], end_s), np.append(watts[within], 0.0)
    joules = np.append(0.0, np.cumsum(power[:-1] * np.diff(times)))
    mean = np.diff(np.interp(edges, times, joules)) * count / end_s
    first = np.searchsorted(times, edges[:-1], "right") - 1
    last = np.searchsorted(times, edges[1:], "left")
    highest = [float(np.max(power[a:b])) for a, b in zip(first, last, strict=True)]
    return end_s / count, mean.tolist(), highest
