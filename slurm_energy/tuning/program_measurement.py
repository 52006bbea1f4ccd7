"""Measurements of recurring jobs: their time and power at operating points (settings).

The module also computes the drift between measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint

MIN_ERROR: Final = 0.005
"""Minimum standard error of a logarithm. Equal measurements must never give infinite precision."""
DRIFT_DEVIATIONS: Final = 4.0
"""Number of standard deviations between measurements at one point beyond which a job has drifted."""
MIN_DRIFT: Final = 0.05
"""Minimum deviation of a logarithm that counts as drift."""
_DRAW_ERROR: Final = 0.05
"""Relative standard error of the power at the start of a run as the mean power of an untuned run."""
_UNKNOWN: Final = 100.0


@dataclass(frozen=True, slots=True)
class ProgramMeasurement:
    """Time and power of a recurring job at one operating point (settings of its CPUs and GPUs).

    Time and power come from a whole run or from measurement windows within a run.

    Attributes:
        point: operating point at which the job ran.
        time: time per unit of work in any unit. Only times of measurements with the same `scale` are
            comparable.
        power: mean power of the job's components.
        time_error: relative standard error of `time`.
        power_error: relative standard error of `power`.
        scale: name of the unknown scale of `time` and `power`. Measurements with the same name have the same
            scale, for example whole runs with the same number of nodes, GPUs and CPUs. None means that
            `time` and `power` are ratios to the untuned job.
        count: number of windows or runs that were averaged. It is 0 for the power that was measured at the
            start of a run, before the run was tuned.
        unix_s: Unix time of the measurement; None if unknown.
    """

    point: OperatingPoint
    time: float
    power: float
    time_error: float = 0.02
    power_error: float = 0.02
    scale: str | None = None
    count: int = 1
    unix_s: float | None = None


def untuned_draw(watts: float, scale: str) -> ProgramMeasurement:
    """Return a measurement that contains only the power of an untuned job, and no time.

    It is the mean power of the job before tuning. Compared with measurements of whole runs, it shows by how
    much a power limit has lowered the mean power of these runs. This matters for a job that waits for its
    host. While such a job computes, it draws more than its mean power. Therefore a power limit lowers its
    mean power by a larger factor than the ratio of the limit to the untuned mean power.

    Args:
        watts: mean power of the untuned job.
        scale: name of the scale of the whole runs with which the measurement is compared.
    """
    return ProgramMeasurement(UNTUNED, 1.0, watts, _UNKNOWN, _DRAW_ERROR, scale, count=0)


def after_drift(measurements: Sequence[ProgramMeasurement]) -> tuple[ProgramMeasurement, ...]:
    """Return the measurements of a job since its last drift, in their order.

    A drift is a change of the program after which earlier measurements no longer count. To find a drift,
    each measurement is compared with earlier measurements at the same operating point (hardware
    settings). The compared measurements must also have the same scale, for example the same number of
    nodes. There is a drift if two conditions hold: the measurement deviates by more than
    `DRIFT_DEVIATIONS` standard deviations, and by more than `MIN_DRIFT`. All measurements before the
    deviating measurement are then dropped.

    Args:
        measurements: measurements in the order of time.
    """
    kept: list[ProgramMeasurement] = []
    for measurement in measurements:
        same = [one for one in kept if (one.point, one.scale) == (measurement.point, measurement.scale)]
        if same and (
            _deviates([(one.time, one.time_error) for one in [*same, measurement]])
            or _deviates([(one.power, one.power_error) for one in [*same, measurement]])
        ):
            kept = []
        kept.append(measurement)
    return tuple(kept)


def _deviates(values: Sequence[tuple[float, float]]) -> bool:
    """Return whether the last of several measured values deviates from the mean of the earlier ones.

    Args:
        values: pairs of value and relative standard error, at least two.
    """
    logs = [math.log(value) for value, _ in values]
    variances = [max(error, MIN_ERROR) ** 2 for _, error in values]
    mean = sum(logs[:-1]) / len(logs[:-1])
    variance = variances[-1] + sum(variances[:-1]) / len(variances[:-1]) ** 2
    threshold = max(MIN_DRIFT, DRIFT_DEVIATIONS * math.sqrt(variance))
    return abs(logs[-1] - mean) > threshold


def merge_repetitions(measurements: Sequence[ProgramMeasurement]) -> tuple[ProgramMeasurement, ...]:
    """Merge repeated measurements of a program into one mean measurement with its error.

    Measurements are repetitions if they have the same operating point and the same value of `scale`.
    Times of measurements with the same `scale` are comparable. The errors of repetitions count as
    independent. The error of a mean is at least `MIN_ERROR`.
    """
    groups: dict[tuple[OperatingPoint, str | None], list[ProgramMeasurement]] = {}
    for one in measurements:
        groups.setdefault((one.point, one.scale), []).append(one)
    return tuple(map(_mean, groups.values()))


def _mean(group: Sequence[ProgramMeasurement]) -> ProgramMeasurement:
    time, time_error = _weighted_mean([(one.time, one.time_error) for one in group])
    power, power_error = _weighted_mean([(one.power, one.power_error) for one in group])
    return replace(
        group[-1],
        time=time,
        power=power,
        time_error=time_error,
        power_error=power_error,
        count=sum(one.count for one in group),
    )


def _weighted_mean(values: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the weighted geometric mean of values, and the relative error of the mean.

    Args:
        values: pairs of value and relative error. The weight of a value is the inverse square of its error.
    """
    weights = [1.0 / max(error, MIN_ERROR) ** 2 for _, error in values]
    total = math.fsum(weights)
    log = math.fsum(w * math.log(value) for w, (value, _) in zip(weights, values, strict=True)) / total
    return math.exp(log), max(MIN_ERROR, math.sqrt(1.0 / total))
