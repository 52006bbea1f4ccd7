"""Effect of power limits on groups of devices, for decisions about power budgets.

The module computes the run time of a group under several power limits, and the power of the group at its
lowest limit. The values come from response curves or from the physical model.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from slurm_energy.controller.budgets.facts import BudgetedJob
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.scheduling.queue import Bools, Floats
from slurm_energy.tuning.device_response import DeviceResponse
from slurm_energy.tuning.response_curve import ResponseCurve

if TYPE_CHECKING:
    from slurm_energy.controller.budgets.groups import MergedJobReport

LEVELS: Final = 8
"""Number of power limits per group for which the time is computed."""
_LOWEST_RATIO: Final = 1.02
"""Power limit divided by the lowest limit up to which a measured point shows the power at that limit."""
_LOWEST_MARGIN: Final = 1.03
"""Margin for the difference of this power between runs."""
_SAMPLES: Final = 400
_SHARES: Final = np.linspace(0.0, 1.0, 41)


def limits_and_times(
    job_ids: Sequence[tuple[int, ...]],
    kinds: Sequence[str],
    is_gpu: Bools,
    min_watts: Floats,
    draw_watts: Floats,
    jobs: Mapping[int, BudgetedJob],
    reports: Mapping[int, MergedJobReport],
) -> tuple[Floats, Floats]:
    """Return several power limits for each group of devices, and the relative time at each limit.

    The devices of a group are of the same kind and get the same limit. Both arrays have the shape (n,
    `LEVELS`). The limits are per device and lie between the lowest limit and the expected power. The
    relative time is the time with the limit divided by the time without a limit. It comes from the
    response curve of the group's job, which states the time at several limits. A curve that was measured
    in the current run takes precedence over other curves of the job. Without a curve, the mean of the
    physical model is used.

    Args:
        job_ids: jobs of each of the n groups.
        kinds: kind of device of each group.
        is_gpu: whether the devices are GPUs, shape (n,).
        min_watts: lowest limit per device, shape (n,).
        draw_watts: expected power per device without a limit, shape (n,).
        jobs: running jobs by id.
        reports: reports about each job, merged from all its nodes, by job id.
    """
    low = np.minimum(min_watts, draw_watts)
    level = low[:, None] + (draw_watts - low)[:, None] * np.linspace(0.0, 1.0, LEVELS)
    share = level / np.maximum(draw_watts, 1e-9)[:, None]
    time = np.empty_like(level)
    for like_gpus in (False, True):
        rows = is_gpu == like_gpus
        time[rows] = np.interp(share[rows], _SHARES, _physical_times(like_gpus))
    for row, (ids, kind) in enumerate(zip(job_ids, kinds, strict=True)):
        curve = _curve(ids, kind, jobs, reports)
        if curve is not None and (points := _limit_points(curve, bool(is_gpu[row]))) is not None:
            time[row] = _interpolated(*points, level[row], float(draw_watts[row]))
    time = np.maximum.accumulate(np.maximum(time, 1.0)[:, ::-1], axis=1)[:, ::-1]
    time[:, -1] = 1.0
    return level, time


def lowest_power(
    job_ids: Sequence[tuple[int, ...]],
    kinds: Sequence[str],
    is_gpu: Bools,
    min_watts: Floats,
    draw_watts: Floats,
    jobs: Mapping[int, BudgetedJob],
    reports: Mapping[int, MergedJobReport],
) -> Floats:
    """Return the power that each group of devices is expected to draw at its lowest power limit.

    The power follows from the measured response of the group's job to power limits. It is NaN if there is no
    measurement. The arguments are those of `limits_and_times`. The shape is (n,).
    """
    watts = np.full(len(kinds), np.nan)
    for row, (ids, kind) in enumerate(zip(job_ids, kinds, strict=True)):
        curve = _curve(ids, kind, jobs, reports)
        ratio = None if curve is None else _lowest_ratio(curve, bool(is_gpu[row]), float(min_watts[row]))
        if ratio is not None:
            watts[row] = max(float(min_watts[row]), _LOWEST_MARGIN * ratio * float(draw_watts[row]))
    return watts


@functools.lru_cache(maxsize=4096)
def _lowest_ratio(curve: ResponseCurve, of_gpu: bool, min_watts: float) -> float | None:
    """Return the power of a device at about its lowest power limit, relative to no limit.

    The response curve states the measured power at some power limits. The function uses the first of
    these limits that is at most `_LOWEST_RATIO` times `min_watts`. The result is None if the curve has no
    such limit.

    Args:
        curve: measured response of a program to power limits.
        of_gpu: whether the device is a GPU; otherwise the device is a processor package.
        min_watts: lowest power limit of the device.
    """
    for item in curve.points:
        watts = item.point.gpu_limit_watts if of_gpu else item.point.package_limit_watts
        if watts is not None and item.count > 0 and watts <= _LOWEST_RATIO * min_watts:
            return item.power_ratio
    return None


@functools.cache
def _physical_times(like_gpus: bool) -> Floats:
    """Return the mean relative run times that a physical model predicts under power limits.

    The limits are the fractions `_SHARES` of the device's power without a limit. The run times are relative
    to the run time without a limit.
    """
    response = DeviceResponse(np.random.default_rng(13), _SAMPLES, like_gpus)
    log_time, _ = response.at_limit(np.tile(_SHARES, (_SAMPLES, 1)))
    times: Floats = np.exp(log_time.mean(axis=0))
    return times


def _interpolated(limits: Floats, log_times: Floats, level: Floats, draw_watts: float) -> Floats:
    """Return the time at each of the power limits `level`, divided by the time without a limit.

    The values are interpolated between the points of a response curve. Below the lowest limit of the curve,
    the speed is proportional to the limit. At the expected power `draw_watts`, the ratio is 1.
    """
    below = limits < draw_watts
    limits, log_times = np.append(limits[below], draw_watts), np.append(log_times[below], 0.0)
    log_time = np.interp(level, limits, log_times)
    ratios: Floats = np.exp(log_time) * np.maximum(1.0, limits[0] / np.maximum(level, 1e-9))
    return ratios


def _curve(
    ids: tuple[int, ...], kind: str, jobs: Mapping[int, BudgetedJob], reports: Mapping[int, MergedJobReport]
) -> ResponseCurve | None:
    """Return the response curve of the job on a group of devices.

    The response curve states how time and power react to power limits. The result is None if the group has
    several jobs, or if no curve is known. A curve measured in the current run takes precedence over the best
    other curve of the job.
    """
    if len(ids) != 1:
        return None
    report = reports.get(ids[0])
    if report is not None and report.curve is not None and report.curve.hardware == kind:
        return report.curve
    return jobs[ids[0]].curves.get(kind) if ids[0] in jobs else None


@functools.lru_cache(maxsize=4096)
def _limit_points(curve: ResponseCurve, of_gpu: bool) -> tuple[Floats, Floats] | None:
    """Return the power limits of a response curve in ascending order, and the time at each limit.

    The time is the logarithm of the ratio to the untuned time. Points of the curve that set anything besides
    the power limit of the device are left out. Return None if no point remains.
    """
    points = {}
    for item in curve.points:
        watts = item.point.gpu_limit_watts if of_gpu else item.point.package_limit_watts
        if watts is None:
            continue
        alone = OperatingPoint(gpu_limit_watts=watts) if of_gpu else OperatingPoint(package_limit_watts=watts)
        if item.point == alone:
            points[float(watts)] = float(np.log(item.time_ratio))
    if not points:
        return None
    limits = sorted(points)
    return np.array(limits), np.array([points[limit] for limit in limits])
