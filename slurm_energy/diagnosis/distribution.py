"""Summary of step times and signal values by mean, percentiles and variation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.steps import PhaseStatistics


class Stability(StrEnum):
    """Class of a set of values that states how strongly the values vary.

    The class follows from the coefficient of variation.
    """

    STABLE = "stable"
    VARIABLE = "variable"
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True)
class ValueDistribution:
    """Mean, percentiles and coefficient of variation of at least one value.

    Attributes:
        count: number of values.
        mean: mean of the values.
        p50, p90, p99: percentiles.
        variation: standard deviation divided by the mean; None if the mean is 0.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    variation: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the distribution as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}

    def stability(self, config: DiagnosisConfig) -> Stability | None:
        """Return how strongly the values vary: stable, variable or unstable.

        The result is None if the variation is unknown.
        """
        if self.variation is None:
            return None
        if 100 * self.variation < config.value("stable_variation"):
            return Stability.STABLE
        is_unstable = 100 * self.variation > config.value("unstable_variation")
        return Stability.UNSTABLE if is_unstable else Stability.VARIABLE


def distribution_of(values: Iterable[float]) -> ValueDistribution | None:
    """Return the distribution of the known values; None if no value is known. NaN values are unknown."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / len(known))
    p50, p90, p99 = (percentile(known, percent) for percent in (50, 90, 99))
    return ValueDistribution(len(known), mean, p50, p90, p99, deviation / abs(mean) if mean else None)


def phase_distribution(phase: PhaseStatistics) -> ValueDistribution | None:
    """Return the distribution of the durations of one phase in the steps of a job, in seconds.

    The result is None if the phase has no durations.
    """
    mean, deviation = phase.mean_s, phase.deviation_s
    percentiles = [phase.percentile_s(percent) for percent in (50, 90, 99)]
    if mean is None or deviation is None:
        return None
    p50, p90, p99 = (0.0 if value is None else value for value in percentiles)
    return ValueDistribution(phase.count, mean, p50, p90, p99, deviation / mean if mean else None)


def percentile(ascending: list[float], percent: float) -> float:
    """Return a percentile of ascending values by linear interpolation.

    Args:
        ascending: one or more values in ascending order.
        percent: which percentile, 0 to 100.
    """
    position = (len(ascending) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (position - low)


def median(values: Iterable[float]) -> float | None:
    """Return the median of the values; None if there are no values."""
    ascending = sorted(values)
    return percentile(ascending, 50) if ascending else None
