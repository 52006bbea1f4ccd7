"""Metrics of a sweep: energy gain, gain minus loss, energy-delay product and energy-delay sum.

The definitions are those of section 3 of the paper that docs/sweep.md calls power-capping. All gains
are relative to the reference point of the sweep, in percent, and positive if the point is better.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.tuning.sweep.intervals import difference_half_width, half_width

EDS_FACTORS: Final = (1.5, 2.0)
"""Performance loss ratios k of the energy-delay sum that a sweep reports (power-capping, Table 1)."""
METRICS: Final = ("energy", "gain_minus_loss", "edp", "eds_1.5", "eds_2")
"""Keys of the metrics for which a sweep names the best point, in the order of power-capping, Table 1."""


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """Time and energy of one job of a sweep.

    Attributes:
        time_s: seconds from the start to the end of the job.
        energy_joules: energy of the job on all its nodes.
    """

    time_s: float
    energy_joules: float


@dataclass(frozen=True, slots=True)
class Quantity:
    """Mean and spread of a measured quantity over repetitions.

    Attributes:
        mean: arithmetic mean.
        deviation: sample standard deviation; None for fewer than two repetitions.
        half_width: half-width of the 95 % confidence interval of the mean; None for fewer than two
            repetitions.
    """

    mean: float
    deviation: float | None
    half_width: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantity:
        """Return mean, standard deviation and confidence interval of one or more values."""
        mean = math.fsum(values) / len(values)
        deviation = statistics.stdev(values, mean) if len(values) > 1 else None
        return cls(mean, deviation, half_width(values))


@dataclass(frozen=True, slots=True)
class PointSummary:
    """Measurements of one point of a sweep, summarised over its repetitions.

    A point is one combination of the settings that the sweep varies.

    Attributes:
        runs: number of repetitions.
        time_s: time of the job.
        energy_joules: energy of the job.
        watts: mean power of the job.
        measurements: measurement of each repetition.
    """

    runs: int
    time_s: Quantity
    energy_joules: Quantity
    watts: Quantity
    measurements: tuple[RunMeasurement, ...]

    @property
    def edp(self) -> float:
        """Energy-delay product, computed from the mean energy and the mean time, in joule-seconds."""
        return self.energy_joules.mean * self.time_s.mean


def summarise(runs: Sequence[RunMeasurement]) -> PointSummary | None:
    """Return the mean time, energy and power of the runs of one point of a sweep.

    A point is one combination of the values that the sweep varies. The result is None without runs.
    """
    if not runs:
        return None
    return PointSummary(
        len(runs),
        Quantity.of([run.time_s for run in runs]),
        Quantity.of([run.energy_joules for run in runs]),
        Quantity.of([run.energy_joules / run.time_s for run in runs]),
        tuple(runs),
    )


@dataclass(frozen=True, slots=True)
class PointGains:
    """Gains and losses at one point of a sweep (combination of settings), relative to the reference.

    In the formulas, E is the energy and t the time at the point. E_ref and t_ref are those of the
    reference.

    Attributes:
        energy_percent: percentage energy gain, 100 (1 - E / E_ref).
        loss_percent: percentage performance loss, 100 (t / t_ref - 1).
        edp_percent: gain of the energy-delay product, 100 (1 - E t / (E_ref t_ref)).
        eds: energy-delay sum for each factor k; 1 for the reference.
    """

    energy_percent: float
    loss_percent: float
    edp_percent: float
    eds: dict[float, float]

    @property
    def gain_minus_loss_percent(self) -> float:
        """Difference between percentage energy gain and percentage performance loss."""
        return self.energy_percent - self.loss_percent

    def eds_percent(self, factor: float) -> float:
        """Return the gain of the energy-delay sum in percent.

        `factor` is the weight k of the delay in the energy-delay sum.
        """
        return 100.0 * (1.0 - self.eds[factor])

    def metric(self, name: str) -> float:
        """Return the gain in percent by the metric `name`, which is one of METRICS."""
        if name.startswith("eds_"):
            return self.eds_percent(float(name.removeprefix("eds_")))
        return {
            "energy": self.energy_percent,
            "gain_minus_loss": self.gain_minus_loss_percent,
            "edp": self.edp_percent,
        }[name]


def energy_delay_sum(time_ratio: float, energy_ratio: float, factor: float) -> float:
    """Return the energy-delay sum alpha E + beta t of a run with energy E and time t. Less is better.

    The weights are alpha = (k - 1) / (k E_ref) and beta = 1 / (k t_ref). A run with the energy and time of
    the reference has the sum 1. A run that used no energy and took k times the reference time would also
    have the sum 1. Source of the definition: power-capping, section 3.

    Args:
        time_ratio: t / t_ref.
        energy_ratio: E / E_ref.
        factor: performance loss ratio k, above 1.
    """
    return (factor - 1.0) / factor * energy_ratio + time_ratio / factor


def gains(point: PointSummary, reference: PointSummary) -> PointGains:
    """Return how much a point of a sweep is better or worse than the sweep's reference, by metric.

    A point is a combination of settings.
    """
    time_ratio = point.time_s.mean / reference.time_s.mean
    energy_ratio = point.energy_joules.mean / reference.energy_joules.mean
    return PointGains(
        100.0 * (1.0 - energy_ratio),
        100.0 * (time_ratio - 1.0),
        100.0 * (1.0 - time_ratio * energy_ratio),
        {factor: energy_delay_sum(time_ratio, energy_ratio, factor) for factor in EDS_FACTORS},
    )


def gain_half_width(point: PointSummary, reference: PointSummary, name: str) -> float | None:
    """Return the half-width of the 95 % confidence interval of a gain, in percentage points.

    A gain compares a point (one combination of settings in a sweep) with the reference point. The gain is
    approximated as a linear function of time and energy around the means of both points. For each run, the
    relative deviations of time and energy are multiplied by the slopes of this function and added. A run
    that is slow and therefore needs much energy thus counts as one deviation, not as two independent ones.

    Args:
        point: summary of the point.
        reference: summary of the reference. The gain of the reference itself is 0 by definition.
        name: a metric of METRICS.

    Returns:
        The half-width; None if a point has fewer than two repetitions.
    """
    if point is reference:
        return 0.0
    by_energy, by_time = _derivatives(
        point.time_s.mean / reference.time_s.mean,
        point.energy_joules.mean / reference.energy_joules.mean,
        name,
    )
    groups = [
        [
            by_energy * run.energy_joules / one.energy_joules.mean + by_time * run.time_s / one.time_s.mean
            for run in one.measurements
        ]
        for one in (point, reference)
    ]
    return difference_half_width(*groups)


def _derivatives(time_ratio: float, energy_ratio: float, name: str) -> tuple[float, float]:
    """Return the two derivatives of a sweep's gain, for the propagation of errors.

    The first derivative is by the logarithm of the energy ratio, the second by the logarithm of the time
    ratio.
    """
    if name.startswith("eds_"):
        factor = float(name.removeprefix("eds_"))
        return -100.0 * (factor - 1.0) / factor * energy_ratio, -100.0 * time_ratio / factor
    return {
        "energy": (-100.0 * energy_ratio, 0.0),
        "gain_minus_loss": (-100.0 * energy_ratio, -100.0 * time_ratio),
        "edp": (-100.0 * energy_ratio * time_ratio, -100.0 * energy_ratio * time_ratio),
    }[name]


def best_points(points: Sequence[PointGains | None]) -> dict[str, int]:
    """Return for each metric of a sweep the index of the best point (combination of settings).

    If points are equal, the first one is the best. The result is empty if no point has measurements.
    """
    known = [(index, point) for index, point in enumerate(points) if point is not None]
    if not known:
        return {}
    return {
        name: max(known, key=lambda item, name=name: (item[1].metric(name), -item[0]))[0]  # type: ignore[misc]
        for name in METRICS
    }
