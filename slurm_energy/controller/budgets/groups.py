"""Construction of groups of devices from the devices of all nodes, for decisions about budgets.

A decision sets the same power limit for all devices of a group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_energy.budget.power_groups import NO_JOB, PowerGroups
from slurm_energy.controller.budgets.curves import limits_and_times, lowest_power
from slurm_energy.controller.budgets.facts import BudgetedJob
from slurm_energy.controller.budgets.nodes import BudgetDevice
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.tuning.response_curve import ResponseCurve


@dataclass(frozen=True, slots=True)
class DeviceGroups:
    """Groups of devices. One decision sets the same power limit for all devices of a group.

    Attributes:
        columns: values of the groups, as columns.
        of_device: for each input device, the index of its group, shape (number of devices,).
        job_ids: ids of the jobs of each group.
        kinds: kind of device of each group.
        lowest_watts: measured power of one device of each group at its lowest limit; NaN if unknown.
    """

    columns: PowerGroups
    of_device: Ints
    job_ids: Sequence[tuple[int, ...]]
    kinds: Sequence[str]
    lowest_watts: Floats


@dataclass(frozen=True, slots=True)
class MergedJobReport:
    """Reports about a job, merged from all of the job's nodes.

    Attributes:
        nodes: number of nodes that have reported.
        slowdown_limit: maximum increase of the run time as a fraction of the untuned run time; None means
            that the job has no slowdown limit.
        curve: response curve that the job's agents measured in this run; None means that no curve was
            measured.
    """

    nodes: int
    slowdown_limit: float | None
    curve: ResponseCurve | None


def build_groups(
    devices: Sequence[BudgetDevice],
    draw_watts: Floats,
    floor_percent: Floats,
    jobs: Mapping[int, BudgetedJob],
    reports: Mapping[int, MergedJobReport],
) -> DeviceGroups:
    """Return the groups of devices that share a power limit.

    Devices of one group have the same jobs, the same kind and the same range of limits.

    Args:
        devices: n devices with jobs and with a power limit.
        draw_watts: expected power of each device without a limit, shape (n,).
        floor_percent: lowest limit that each device may get while it runs jobs, as a position in its range of
            limits: 0 is the minimum, 100 the maximum. Shape (n,).
        jobs: running jobs in Slurm by id.
        reports: reports about each job, merged from all its nodes, by job id.
    """
    keys: dict[tuple[tuple[int, ...], str, float, float, bool], int] = {}
    of_device = np.empty(len(devices), np.int64)
    for index, device in enumerate(devices):
        report = device.report
        key = (report.job_ids, report.kind, device.min_watts, device.max_watts, device.is_gpu)
        of_device[index] = keys.setdefault(key, len(keys))
    count = len(keys)
    low = np.array([key[2] for key in keys], np.float64)
    high = np.array([key[3] for key in keys], np.float64)
    draw, floor = np.zeros(count), np.zeros(count)
    np.maximum.at(draw, of_device, draw_watts)
    np.maximum.at(floor, of_device, floor_percent)
    job_ids, kinds = [key[0] for key in keys], [key[1] for key in keys]
    is_gpu = np.array([key[4] for key in keys], np.bool_)
    level, time = limits_and_times(job_ids, kinds, is_gpu, low, draw, jobs, reports)
    limited = np.ones(count)
    np.minimum.at(limited, of_device, np.array([device.draw.limited_share for device in devices], np.float64))
    time = 1.0 + _host_shares(job_ids, is_gpu, limited)[:, None] * (time - 1.0)
    columns = PowerGroups(
        job_id=np.array([min(ids, default=NO_JOB) for ids in job_ids], np.int64),
        devices=np.bincount(of_device, minlength=count).astype(np.int64),
        min_watts=low,
        max_watts=high,
        draw_watts=draw,
        floor_watts=low + floor / 100.0 * (high - low),
        level_watts=level,
        time_ratio=time,
        slowdown_limit=np.array([_slowdown_limit(ids, reports) for ids in job_ids], np.float64),
        weight=np.array([_nodes(ids, jobs, reports) for ids in job_ids], np.float64),
        deadline_s=np.array([_deadline_s(ids, jobs) for ids in job_ids], np.float64),
    )
    lowest = lowest_power(job_ids, kinds, is_gpu, low, draw, jobs, reports)
    return DeviceGroups(columns, of_device, job_ids, kinds, lowest)


def _host_shares(job_ids: Sequence[tuple[int, ...]], is_gpu: Bools, limited_share: Floats) -> Floats:
    """Return the fraction of time in which each group's devices may determine the speed of jobs.

    While a power limit slows down the GPUs of a job, the GPUs determine the job's speed. In this time, a
    power limit of the CPU packages does not slow the job down. Therefore the packages of the job get only
    the remaining fraction of the time. All other groups get 1. The result has the shape (n,).

    Args:
        job_ids: jobs of each of the n groups.
        is_gpu: whether the devices of a group are GPUs, shape (n,).
        limited_share: fraction of the last seconds in which the limit slowed down all devices of a group,
            shape (n,).
    """
    by_jobs: dict[tuple[int, ...], float] = {}
    for row in np.flatnonzero(is_gpu).tolist():
        by_jobs[job_ids[row]] = min(by_jobs.get(job_ids[row], 1.0), float(limited_share[row]))
    shares = [
        1.0 if gpu else 1.0 - by_jobs.get(ids, 0.0) for ids, gpu in zip(job_ids, is_gpu.tolist(), strict=True)
    ]
    return np.array(shares, np.float64)


def _slowdown_limit(ids: tuple[int, ...], reports: Mapping[int, MergedJobReport]) -> float:
    limits = [reports[job].slowdown_limit for job in ids if job in reports]
    return min((limit for limit in limits if limit is not None), default=math.nan)


def _nodes(
    ids: tuple[int, ...], jobs: Mapping[int, BudgetedJob], reports: Mapping[int, MergedJobReport]
) -> float:
    counts = [len(jobs[job].nodes) if job in jobs else 0 for job in ids]
    counts += [reports[job].nodes for job in ids if job in reports]
    return float(max(counts, default=1) or 1)


def _deadline_s(ids: tuple[int, ...], jobs: Mapping[int, BudgetedJob]) -> float:
    slack = [jobs[job].deadline_s for job in ids if job in jobs]
    return min((one for one in slack if one is not None), default=math.inf)
