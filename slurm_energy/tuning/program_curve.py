"""Response curves of programs, computed from the recorded runs of these programs.

A response curve states how time and power of a program depend on the hardware settings. The module does not
need numpy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.learned_run import LearnedRun
from slurm_energy.tuning.program_measurement import (
    MIN_ERROR,
    ProgramMeasurement,
    after_drift,
    merge_repetitions,
)
from slurm_energy.tuning.response_curve import MAX_POINTS, CurveSource, ResponseCurve, ResponsePoint

RUN_ERROR: Final = 0.02
"""Relative standard deviation of the time and power of repeated runs, before any repetition was measured."""
_PRIOR_REPETITIONS: Final = 4.0
_NO_UNTUNED_ERROR: Final = 0.03
"""Additional error of ratios against the run with the highest limit, if no untuned run was measured."""
_FULL_LIMIT_SHARE: Final = 0.9
"""Minimum share of the limit before the job of a limit that can take the place of the untuned job."""


@dataclass(frozen=True, slots=True)
class _Reference:
    """Mean time and power of whole runs at the untuned settings, with their relative errors.

    Other whole runs are compared with this reference. It holds for one shape, which is a number of nodes,
    GPUs and CPUs.
    """

    time: float
    power: float
    error: float


def measurements_of(runs: Iterable[LearnedRun]) -> tuple[ProgramMeasurement, ...]:
    """Return the measurements of a program, in the order in which its runs ended.

    Measurements before the last drift are left out. A drift is a change of the program after which earlier
    measurements no longer count. The errors of whole runs are estimated from repeated runs at the same
    operating point.

    Args:
        runs: runs of one program on one kind of hardware, in any order.
    """
    measurements = []
    for run in sorted(runs, key=lambda run: run.end_unix_s):
        measurements += [
            ProgramMeasurement(
                point.point,
                point.time_ratio,
                point.power_ratio,
                time_error=RUN_ERROR if point.time_error is None else max(point.time_error, MIN_ERROR),
                power_error=RUN_ERROR,
                count=point.count,
                unix_s=run.end_unix_s,
            )
            for point in run.points
            if point.point != UNTUNED
        ]
        if run.point is not None and run.seconds is not None and run.watts is not None:
            measurements.append(
                ProgramMeasurement(
                    *(run.point, run.seconds, run.watts, RUN_ERROR, RUN_ERROR, run.shape),
                    unix_s=run.end_unix_s,
                )
            )
    return _with_observed_errors(after_drift(measurements))


def program_curve(
    runs: Sequence[LearnedRun], hardware: str, workload: str, source: CurveSource = CurveSource.EARLIER_RUNS
) -> ResponseCurve | None:
    """Return the response curve of a program: its time and power relative to the untuned program.

    The result is None if no two points can be compared. A whole run is compared with untuned runs that
    have the same numbers of nodes, GPUs and CPUs. If there is no such untuned run, runs at another GPU
    power limit serve for the comparison. This power limit is close to the one in force before the job.

    Args:
        runs: runs of one program on one kind of hardware.
        hardware: kind of hardware.
        workload: name of the program or class.
        source: source of the points, as stored in the curve.
    """
    measurements = measurements_of(runs)
    references = _references(measurements, _full_limit_watts(runs))
    ratios: dict[OperatingPoint, list[ProgramMeasurement]] = {}
    for one in measurements:
        if one.scale is None:
            ratios.setdefault(one.point, []).append(one)
        elif (reference := references.get(one.scale)) is not None:
            relative = dataclasses.replace(
                one,
                time=one.time / reference.time,
                power=one.power / reference.power,
                time_error=math.hypot(one.time_error, reference.error),
                power_error=math.hypot(one.power_error, reference.error),
            )
            ratios.setdefault(one.point, []).append(relative)
    points = [_response_point(point, found, source) for point, found in ratios.items()]
    if not any(point.point != UNTUNED for point in points):
        return None
    return ResponseCurve(hardware, workload, tuple(points[:MAX_POINTS]))


def site_curves(runs: Mapping[str, Sequence[LearnedRun]], hardware: str) -> list[ResponseCurve]:
    """Return response curves that the site has measured with reference kernels on a kind of hardware.

    A response curve states the relative time and power at several settings.

    Args:
        runs: runs of the reference kernels, by class of the reference kernel.
        hardware: kind of hardware.
    """
    curves = (
        program_curve(of_class, hardware, name, CurveSource.CHARACTERISATION)
        for name, of_class in sorted(runs.items())
    )
    return [curve for curve in curves if curve is not None]


def _with_observed_errors(measurements: Sequence[ProgramMeasurement]) -> tuple[ProgramMeasurement, ...]:
    """Return the measurements of a program with standard errors from the scatter of repeated runs.

    Runs count as repeated if they have the same operating point and comparable values (the same scale).
    Only measurements of whole runs get the new errors.
    """
    groups: dict[tuple[OperatingPoint, str], list[ProgramMeasurement]] = {}
    for one in measurements:
        if one.scale is not None:
            groups.setdefault((one.point, one.scale), []).append(one)
    time_error = _pooled_error([[math.log(one.time) for one in group] for group in groups.values()])
    power_error = _pooled_error([[math.log(one.power) for one in group] for group in groups.values()])
    return tuple(
        one if one.scale is None else dataclasses.replace(one, time_error=time_error, power_error=power_error)
        for one in measurements
    )


def _pooled_error(groups: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation between repeated runs, estimated from several groups of runs.

    The deviations within all groups are pooled. The prior `RUN_ERROR` dominates the result if there are few
    values.
    """
    squares, freedom = _PRIOR_REPETITIONS * RUN_ERROR**2, _PRIOR_REPETITIONS
    for values in groups:
        mean = math.fsum(values) / len(values)
        squares += math.fsum((value - mean) ** 2 for value in values)
        freedom += len(values) - 1
    return max(MIN_ERROR, math.sqrt(squares / freedom))


def _full_limit_watts(runs: Sequence[LearnedRun]) -> float | None:
    """Return the maximum GPU power limit that was in force before a run; None if unknown."""
    return max((run.gpu_limits.default_watts for run in runs if run.gpu_limits is not None), default=None)


def _references(
    measurements: Sequence[ProgramMeasurement], full_limit_watts: float | None
) -> dict[str, _Reference]:
    """Return the untuned time and power of a program (reference) for each job size.

    The job size is given by the numbers of nodes, GPUs and CPUs. Sizes without a reference are left out.

    Args:
        measurements: measurements of whole runs, and measurements within runs.
        full_limit_watts: GPU limit before the job; None if unknown.
    """
    shapes: dict[str, list[ProgramMeasurement]] = {}
    for one in measurements:
        if one.scale is not None:
            shapes.setdefault(one.scale, []).append(one)
    references = {}
    for shape, of_shape in shapes.items():
        untuned = [one for one in of_shape if one.point == UNTUNED]
        compared, extra = untuned, 0.0
        if not untuned:
            compared, extra = _near_untuned(of_shape, full_limit_watts), _NO_UNTUNED_ERROR
        if compared:
            count = len(compared)
            references[shape] = _Reference(
                math.exp(math.fsum(math.log(one.time) for one in compared) / count),
                math.exp(math.fsum(math.log(one.power) for one in compared) / count),
                math.hypot(compared[0].time_error / math.sqrt(count), extra),
            )
    return references


def _near_untuned(
    measurements: Sequence[ProgramMeasurement], full_limit_watts: float | None
) -> list[ProgramMeasurement]:
    """Return the measurements at the highest measured GPU limit, as a substitute for untuned runs.

    The result is empty if this limit is far below the full limit. It is also empty if there are no
    measurements at other settings.

    Args:
        measurements: all measurements of a program.
        full_limit_watts: power limit of the untuned GPU; None if unknown.
    """
    limits = [
        one.point.gpu_limit_watts
        for one in measurements
        if one.point == OperatingPoint(gpu_limit_watts=one.point.gpu_limit_watts)
    ]
    highest = max((watts for watts in limits if watts is not None), default=0.0)
    if full_limit_watts is None or highest < _FULL_LIMIT_SHARE * full_limit_watts:
        return []
    near = [one for one in measurements if one.point == OperatingPoint(gpu_limit_watts=highest)]
    return near if len(near) < len(measurements) else []


def _response_point(
    point: OperatingPoint, measured: Sequence[ProgramMeasurement], source: CurveSource
) -> ResponsePoint:
    """Return the time and power of a program at one combination of settings, as a point of its curve.

    The time and the power are the means of several measurements, weighted by their precision.
    """
    (mean,) = merge_repetitions([dataclasses.replace(one, scale=None) for one in measured])
    ages = [one.unix_s for one in measured if one.unix_s is not None]
    return ResponsePoint(
        point,
        1.0 if point == UNTUNED else mean.time,
        1.0 if point == UNTUNED else mean.power,
        source,
        time_error=mean.time_error,
        count=mean.count,
        measured_unix_s=max(ages, default=None),
    )
