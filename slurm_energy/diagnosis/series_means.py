"""Means and medians of signals, and the values of a signal in a time window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from slurm_energy.diagnosis.distribution import median
from slurm_energy.diagnosis.signals import ObservedSeries

MAX_GAP_INTERVALS: Final = 3.5
"""Maximum length of a gap of unknown values inside or after a period of known values, in intervals."""


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean; None without values."""
    return math.fsum(values) / len(values) if values else None


def scaled(value: float | None, factor: float) -> float | None:
    """Return the value times a factor; None if the value is unknown."""
    return None if value is None else value * factor


def between(series: ObservedSeries, from_s: float, to_s: float) -> list[float]:
    """Return the known values of a time series whose intervals are centred in a time window."""
    first = max(0, math.ceil((from_s - series.start_s) / series.interval_s - 0.5))
    last = max(first, math.ceil((to_s - series.start_s) / series.interval_s - 0.5))
    return [value for value in series.values[first:last] if not math.isnan(value)]


def median_of_others(values: Sequence[float], index: int) -> float | None:
    """Return the median of all values except that at `index`; None if there is no other value."""
    return median([value for number, value in enumerate(values) if number != index])
