"""Use of a program's response curve before the job runs.

A response curve has the relative time and power at several hardware settings. The module finds the best
point of the curve, and the effect of a GPU power limit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.response_curve import ResponseCurve, ResponsePoint

MIN_GAIN = 0.01
"""Minimum gain of the objective, as a share, for which a setting is worth naming."""


def best_point(
    curve: ResponseCurve, objective: Objective, accepts: Callable[[OperatingPoint], bool]
) -> ResponsePoint | None:
    """Return the operating point of a response curve with the lowest cost for the objective.

    The result is None if no point is better than the untuned job. A point is permitted only if its relative
    time plus the error of this time is within the slowdown limit of the objective.

    Args:
        curve: response curve of the job's program on this hardware.
        objective: objective with its slowdown limit.
        accepts: function that returns whether a point may be chosen.
    """
    points = [
        point
        for point in curve.points
        if accepts(point.point) and objective.allows(point.time_ratio + (point.time_error or 0.0))
    ]
    best = min(points, key=lambda point: _cost(objective, point), default=None)
    return best if best is not None and _cost(objective, best) <= 1.0 - MIN_GAIN else None


def ratios_at_gpu_limit(curve: ResponseCurve, limit_watts: float) -> tuple[float, float] | None:
    """Return (relative time, relative power) of a job under a GPU power limit; None if unknown.

    The logarithms of the ratios are interpolated between the neighbouring limits of the curve. Below the
    lowest limit of the curve, the ratios at this lowest limit are returned. The time ratio is then a lower
    bound of the slowdown. Above the highest limit, the ratios are unknown.

    Args:
        curve: response curve of the job's program on this hardware. Only points that set nothing but the
            GPU power limit count.
        limit_watts: power limit of one GPU.
    """
    by_limit = {
        float(point.point.gpu_limit_watts): point
        for point in curve.points
        if point.point.gpu_limit_watts is not None
        and point.point == OperatingPoint(gpu_limit_watts=point.point.gpu_limit_watts)
    }
    limits = sorted(by_limit)
    if not limits or limit_watts > limits[-1]:
        return None
    above = by_limit[limits[bisect_left(limits, limit_watts)]]
    below = by_limit[limits[max(0, bisect_left(limits, limit_watts) - 1)]]
    high, low = above.point.gpu_limit_watts or 0.0, below.point.gpu_limit_watts or 0.0
    share = 1.0 if high <= low or limit_watts <= low else (limit_watts - low) / (high - low)
    time_ratio = _between(below.time_ratio, above.time_ratio, share)
    return time_ratio, _between(below.power_ratio, above.power_ratio, share)


def _between(first: float, second: float, share: float) -> float:
    return math.exp((1.0 - share) * math.log(first) + share * math.log(second))


def _cost(objective: Objective, point: ResponsePoint) -> float:
    return objective.cost(point.time_ratio, point.power_ratio)
