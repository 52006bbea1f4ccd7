"""Selection of the points of a sweep that need no further repetitions.

A point is a combination of settings that the sweep measures. A point needs no further repetitions if another
point is faster and needs less energy, and both differences exceed the noise.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Final

from slurm_energy.tuning.sweep.metrics import PointSummary, Quantity

UNMEASURED_NOISE: Final = 0.03
"""Relative standard deviation that is assumed while no point has two repetitions."""
MIN_NOISE: Final = 0.005
"""Minimum of the estimated relative standard deviation. Two or three equal runs prove no smaller value."""
_STANDARD_ERRORS: Final = 2.0


def relative_noise(quantities: Sequence[tuple[int, Quantity]]) -> float:
    """Return the relative standard deviation of a single run, estimated from all points of a sweep.

    Args:
        quantities: for each point, the number of runs, and the mean and the standard deviation of the
            measured quantity over these runs.
    """
    squares = freedom = 0.0
    for runs, quantity in quantities:
        if quantity.deviation is not None and quantity.mean > 0:
            squares += (runs - 1) * (quantity.deviation / quantity.mean) ** 2
            freedom += runs - 1
    return max(MIN_NOISE, math.sqrt(squares / freedom)) if freedom else UNMEASURED_NOISE


def dominated_points(points: Sequence[PointSummary | None]) -> frozenset[int]:
    """Return the indices of dominated points.

    A dominated point is slower than another point and needs more energy, and both differences exceed noise.

    A difference is beyond noise if it exceeds two standard errors of the difference. No metric that increases
    with time and energy, such as the energy-delay product, is best at a dominated point.

    Args:
        points: summary of each point; None for a point without measurements.
    """
    known = [(index, point) for index, point in enumerate(points) if point is not None]
    time_noise = relative_noise([(point.runs, point.time_s) for _, point in known])
    energy_noise = relative_noise([(point.runs, point.energy_joules) for _, point in known])
    fronts = {runs: _Front([p for _, p in known if p.runs == runs]) for runs in {p.runs for _, p in known}}

    def is_dominated(point: PointSummary) -> bool:
        for runs, front in fronts.items():
            errors = _STANDARD_ERRORS * math.sqrt(1.0 / runs + 1.0 / point.runs)
            joules = front.least_joules(point.time_s.mean / (1.0 + errors * time_noise))
            if joules * (1.0 + errors * energy_noise) < point.energy_joules.mean:
                return True
        return False

    return frozenset(index for index, point in known if is_dominated(point))


class _Front:
    """Index of the points of a sweep by time, to find points that are worse than another one.

    A point is a combination of settings. The index quickly finds the minimum energy among the points that
    are faster than a given time.
    """

    def __init__(self, points: Sequence[PointSummary]) -> None:
        ordered = sorted((point.time_s.mean, point.energy_joules.mean) for point in points)
        self._times_s = [time_s for time_s, _ in ordered]
        self._joules = list(itertools.accumulate((joules for _, joules in ordered), min))

    def least_joules(self, time_s: float) -> float:
        """Return the least energy among all points of the sweep that are faster than `time_s`.

        A point is one combination of settings. The result is infinity if no point is faster.
        """
        count = bisect.bisect_left(self._times_s, time_s)
        return self._joules[count - 1] if count else math.inf
