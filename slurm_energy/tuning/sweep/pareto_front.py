"""Pareto front of a sweep: the points that no other point beats in time and energy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_energy.tuning.sweep.metrics import PointSummary


def pareto_front(points: Sequence[PointSummary | None]) -> tuple[int, ...]:
    """Return the indices of the points that no other point beats in both time and energy.

    The indices are in ascending order of time.
    """
    known = [
        (point.time_s.mean, point.energy_joules.mean, index)
        for index, point in enumerate(points)
        if point is not None
    ]
    front: list[int] = []
    lowest = math.inf
    for _, joules, index in sorted(known):
        if joules < lowest:
            front.append(index)
            lowest = joules
    return tuple(front)
