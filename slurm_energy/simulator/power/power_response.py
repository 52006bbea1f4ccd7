"""Response of simulated jobs to power limits.

The response of a job contains its run time and its power at several power limits. A limit applies to
one unit of the hardware, such as a GPU. The first available source determines the response:

1. The measured points of the job (`Workload.cap_points`).
2. A set of shapes (possible resources) of the job that differ only by their power caps.
3. The model of `oracle.history.cap_response`. The model is used only if the units of the job's
   nodes have a power limit.

A job without any source runs at full power or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slurm_energy.oracle.history.cap_response import RESPONSE, time_factor
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.running_jobs import UNLIMITED, PowerPoint
from slurm_energy.simulator.workloads.workload import Workload

LEVELS = 8
"""Number of limits in each response."""

_ROUNDING = 1e-12
"""Relative difference by which sums of floats may miss the power without a limit."""


class PowerResponse(NamedTuple):
    """Run time and power of a job at several power limits of the units that it uses, such as GPUs.

    Each column has one value per limit, shape (LEVELS,). The limits are ascending.

    Attributes:
        level_watts: power limits per unit. The last one does not limit the job.
        time_ratio, power_ratio: run time and power at each limit, divided by run time and power without a
            limit.
    """

    level_watts: Floats
    time_ratio: Floats
    power_ratio: Floats

    def point(self, limit_watts: float) -> PowerPoint:
        """Return the relative time and power at a power limit of a unit, such as a GPU.

        The values are interpolated between the limits at which the response is known.
        """
        if limit_watts >= self.level_watts[-1] * (1 - _ROUNDING):
            return UNLIMITED
        return PowerPoint(
            limit_watts,
            float(np.interp(limit_watts, self.level_watts, self.time_ratio)),
            float(np.interp(limit_watts, self.level_watts, self.power_ratio)),
        )


class PowerResponses:
    """Effects of power limits on the time and power of each shape of a workload.

    A shape is a possible choice of resources of a job. An effect is computed when it is first needed.

    Args:
        jobs: workload with all jobs.
        kinds: kinds of nodes.
    """

    def __init__(self, jobs: Workload, kinds: Sequence[NodeKind]) -> None:
        self._jobs = jobs
        self._kinds = kinds
        self._responses: dict[int, PowerResponse] = {}

    def response(self, job: int, shape: int) -> PowerResponse:
        """Return how a power limit changes the time and power of a job in a given shape.

        A shape is one of the choices of resources that the job offers. The workload is a table with one row
        per job and one row per shape.

        Args:
            job: row of the job in the workload.
            shape: row of the shape in the workload.
        """
        response = self._responses.get(shape)
        if response is None:
            response = self._responses[shape] = self._compute(job, shape)
        return response

    def _compute(self, job: int, shape: int) -> PowerResponse:
        jobs = self._jobs
        unit_watts = float(jobs.power_watts[shape] / jobs.units[shape])
        if (measured := jobs.cap_points.get(job)) is not None:
            return _from_points(*measured, unit_watts)
        capped = _capped_shapes(jobs, job, shape)
        if len(capped):
            return _from_shapes(jobs, shape, capped, unit_watts)
        min_watts = self._kinds[int(jobs.hardware[shape])].unit_min_watts
        if 0 < min_watts < unit_watts:
            return _from_model(unit_watts, min_watts, jobs.compute_share[job])
        return PowerResponse(np.full(LEVELS, unit_watts), np.ones(LEVELS), np.ones(LEVELS))


def _capped_shapes(jobs: Workload, job: int, shape: int) -> Ints:
    """Return the shapes (ways to run a job) that differ from `shape` only by a lower power cap.

    The shapes are ordered by power, ascending.
    """
    rows = np.arange(jobs.first[job], jobs.first[job + 1])
    alike = np.ones(len(rows), np.bool_)
    for column in (jobs.hardware, jobs.units, jobs.batch):
        alike &= column[rows] == column[shape]
    alike &= jobs.power_watts[rows] < jobs.power_watts[shape]
    lower = rows[alike]
    ordered: Ints = lower[np.argsort(jobs.power_watts[lower], kind="stable")]
    return ordered[-(LEVELS - 1) :]


def _from_shapes(jobs: Workload, shape: int, capped: Ints, unit_watts: float) -> PowerResponse:
    """Return how a power limit slows a job down, derived from the job's shapes with power caps.

    Each shape is one way to run the job. The power that a shape draws counts as its power limit. A shape
    that is slower than another shape with less power is useless. The useless shape gets the time of the
    faster shape.
    """
    rows = np.concatenate([capped, np.full(LEVELS - len(capped), shape)])
    watts = jobs.power_watts[rows] / jobs.units[rows]
    time_ratio = np.maximum(1.0, np.minimum.accumulate(jobs.time_s[rows] / jobs.time_s[shape]))
    return PowerResponse(watts, time_ratio, watts / unit_watts)


def _from_points(power_ratio: Floats, time_ratio: Floats, unit_watts: float) -> PowerResponse:
    """Return the response of a job to power limits, computed from measured points.

    Power limits between two points are interpolated.
    """
    powers = np.append(power_ratio, 1.0)
    times = np.maximum(1.0, np.minimum.accumulate(np.append(time_ratio, 1.0)))
    levels = np.linspace(powers[0], 1.0, LEVELS) if len(powers) > LEVELS else powers
    levels = np.concatenate([levels, np.ones(LEVELS - len(levels))])
    return PowerResponse(levels * unit_watts, np.interp(levels, powers, times), levels)


def _from_model(unit_watts: float, min_watts: float, compute_share: float) -> PowerResponse:
    level_watts = np.linspace(min_watts, unit_watts, LEVELS)
    share = level_watts / unit_watts
    response = RESPONSE if np.isnan(compute_share) else RESPONSE._replace(compute_share=compute_share)
    time_ratio = np.array([time_factor(float(value), response) for value in share])
    return PowerResponse(level_watts, time_ratio, share)
