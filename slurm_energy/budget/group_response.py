"""Response of groups of devices to power limits.

The module computes the run time and the power of a group at any limit. It also computes the limits that a
budget needs: the highest limit, the lowest limit, and the limit that the job needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.budget.power_groups import NO_JOB, PowerGroups
from slurm_energy.scheduling.queue import Bools, Floats, Ints

_RESPONSIVE = 1e-6
"""Increase in time above which a group counts as slowed down by its lowest limit."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Characteristic power limits per device of n groups of devices; shape (n,) each.

    A budget may set any power limit between `floor_watts` and `max_watts`.

    Attributes:
        max_watts: highest power limit of the devices. It applies if no budget restricts the group.
        needed_watts: expected power without a power limit, but at most `max_watts`. Only a power limit
            below this value lowers the power of the job.
        slowdown_watts: lowest power limit at which the job is not slowed down more than its slowdown
            limit permits; `floor_watts` if the job has no slowdown limit.
        floor_watts: lowest power limit that a budget may set.
    """

    max_watts: Floats
    needed_watts: Floats
    slowdown_watts: Floats
    floor_watts: Floats


def group_limits(groups: PowerGroups) -> GroupLimits:
    """Return the power limits that a budget decision needs for each group of devices.

    These are the highest and the lowest limit, the limit that the job needs, and the limit that keeps its
    slowdown limit. The slowdown limit of a job with several groups is divided among the groups that slow the
    job down, because in the worst case the slowdowns of groups multiply.
    """
    floor_watts = np.clip(np.fmax(groups.floor_watts, groups.min_watts), groups.min_watts, groups.max_watts)
    draw_watts = np.where(np.isfinite(groups.draw_watts), groups.draw_watts, groups.max_watts)
    needed_watts = np.clip(draw_watts, floor_watts, groups.max_watts)
    limited = ~np.isnan(groups.slowdown_limit)
    slows = time_ratios(groups, floor_watts[:, None])[:, 0] > 1 + _RESPONSIVE
    parts = np.maximum(1, _sum_by_job(groups.job_id, slows.astype(np.float64)))
    accepted = np.where(limited, np.maximum(0.0, groups.slowdown_limit), 0.0)
    accepted_watts = np.clip(_limit_at_time(groups, (1 + accepted) ** (1 / parts)), floor_watts, needed_watts)
    return GroupLimits(
        max_watts=np.asarray(groups.max_watts, np.float64),
        needed_watts=needed_watts,
        slowdown_watts=np.where(limited, accepted_watts, floor_watts),
        floor_watts=floor_watts,
    )


def time_ratios(groups: PowerGroups, limit_watts: Floats) -> Floats:
    """Return the time per unit of work at given power limits, relative to the time without a limit.

    Below the lowest known limit, the speed is assumed to be proportional to the limit.

    Args:
        groups: n groups of devices.
        limit_watts: limits per device, shape (n, m).

    Returns:
        Time ratios, shape (n, m).
    """
    levels, times = _extended_levels(groups)
    below = np.maximum(1.0, levels[:, :1] / np.maximum(limit_watts, 1e-9))
    return _interpolated(levels, times, limit_watts) * below


def keeps_slowdown_limits(groups: PowerGroups, limit_watts: Floats) -> Bools:
    """Return for each group whether its job keeps the job's slowdown limit, shape (n,).

    The slowdown of a job follows from the limits of all its groups.

    Args:
        groups: n groups of devices.
        limit_watts: limit per device, shape (n,); NaN means no limit.
    """
    limits = np.where(np.isnan(limit_watts), np.inf, limit_watts)
    job_time = np.exp(_sum_by_job(groups.job_id, np.log(time_ratios(groups, limits[:, None])[:, 0])))
    keeps: Bools = np.isnan(groups.slowdown_limit) | (job_time <= 1 + groups.slowdown_limit + 1e-6)
    return keeps


def _extended_levels(groups: PowerGroups) -> tuple[Floats, Floats]:
    """Add the expected power as a further power limit to the known limits of each group of devices.

    At this limit the devices run at full speed, so its time ratio is 1. Known limits above the expected
    power have no effect, so they get the same watts and the time ratio 1.

    Args:
        groups: n groups of devices with k known limits each.

    Returns:
        The limits in watts, and the time ratios, shape (n, k + 1) each.
    """
    draw_watts = np.where(np.isfinite(groups.draw_watts), groups.draw_watts, groups.max_watts)
    top_watts = np.clip(draw_watts, groups.min_watts, groups.max_watts)[:, None]
    is_below = groups.level_watts < top_watts
    levels = np.concatenate([np.minimum(groups.level_watts, top_watts), top_watts], axis=1)
    ones = np.ones((groups.count, 1))
    times = np.where(is_below, np.maximum(1.0, groups.time_ratio), 1.0)
    return levels, np.concatenate([times, ones], axis=1)


def _interpolated(levels: Floats, values: Floats, at: Floats) -> Floats:
    """Return values interpolated linearly in each row. Outside the levels, return the outermost values.

    Args:
        levels: ascending abscissae, shape (n, k).
        values: ordinates, shape (n, k).
        at: abscissae of the result, shape (n, m).

    Returns:
        Interpolated ordinates, shape (n, m).
    """
    wanted = np.clip(at, levels[:, :1], levels[:, -1:])
    is_below = levels[:, None, :] < wanted[:, :, None]
    above: Ints = np.clip(np.count_nonzero(is_below, axis=2), 1, levels.shape[1] - 1)
    rows = np.arange(len(levels))[:, None]
    low, high = levels[rows, above - 1], levels[rows, above]
    width = high - low
    part = np.divide(wanted - low, width, out=np.ones_like(width), where=width > 0)
    first = values[rows, above - 1]
    result: Floats = first + part * (values[rows, above] - first)
    return result


def _limit_at_time(groups: PowerGroups, allowed: Floats) -> Floats:
    """Return, for each group of devices, the lowest power limit that keeps a maximum run time.

    Args:
        groups: groups of devices.
        allowed: maximum run time divided by the run time without a limit, shape (n,).
    """
    levels, times = _extended_levels(groups)
    rows = np.arange(groups.count)
    fits = times <= allowed[:, None]
    above = np.maximum(1, np.argmax(fits, axis=1))
    slow, fast = times[rows, above - 1], times[rows, above]
    part = np.divide(slow - allowed, slow - fast, out=np.ones_like(slow), where=slow > fast)
    low = levels[rows, above - 1]
    between = low + np.clip(part, 0.0, 1.0) * (levels[rows, above] - low)
    below = levels[:, 0] * times[:, 0] / allowed
    limits: Floats = np.where(fits[:, 0], np.minimum(below, levels[:, 0]), between)
    return limits


def _sum_by_job(job_id: Ints, values: Floats) -> Floats:
    """Return for each group of devices the sum over all groups that belong to the same job.

    If a group has no job, the result is the group's own value.
    """
    jobs, row = np.unique(job_id, return_inverse=True)
    if len(jobs) == 0:
        return np.zeros(0)
    sums = np.bincount(row, weights=values, minlength=len(jobs))[row]
    result: Floats = np.where(job_id == NO_JOB, values, sums)
    return result
