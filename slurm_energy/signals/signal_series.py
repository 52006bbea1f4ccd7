"""Values of a signal on a regular grid of time steps, past and future. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from slurm_energy.errors import UsageError
from slurm_energy.grid.series import DEFAULT_STEP_S, GridSeries
from slurm_energy.signals.columns import Floats


@dataclass(frozen=True, slots=True)
class SignalSeries:
    """Values of a signal in consecutive time steps. Step i begins at start_s + i step_s.

    Attributes:
        start_s: start of the first step in seconds.
        step_s: length of a step in seconds.
        values: mean value of each step, shape (n,); NaN if unknown.
        source: origin of the values, for display.
    """

    start_s: float
    step_s: float
    values: Floats
    source: str = ""

    def __post_init__(self) -> None:
        if not (self.step_s > 0 and math.isfinite(self.step_s + self.start_s)):
            raise UsageError("signal series", "start and step must be finite, and the step positive")

    @property
    def end_s(self) -> float:
        """Return the end of the last step in seconds."""
        return self.start_s + self.step_s * len(self.values)

    def at(self, time_s: ArrayLike) -> Floats:
        """Return the values at the given times; NaN where unknown."""
        times = np.asarray(time_s, np.float64)
        row = np.floor((times - self.start_s) / self.step_s)
        inside = (row >= 0) & (row < len(self.values))
        rows = np.where(inside, row, 0).astype(np.int64)
        if not len(self.values):
            return np.full(times.shape, np.nan)
        found: Floats = np.where(inside, self.values[rows], np.nan)
        return found

    def integral(self, time_s: ArrayLike) -> Floats:
        """Return the integral of the signal from the start of the series to each of the given times.

        Unknown values count as 0. Times outside the series are clipped to its start or end.
        """
        times = np.clip(np.asarray(time_s, np.float64) - self.start_s, 0.0, self.step_s * len(self.values))
        known = np.nan_to_num(self.values)
        below = np.concatenate([[0.0], np.cumsum(known) * self.step_s])
        row = np.minimum((times / self.step_s).astype(np.int64), max(0, len(known) - 1))
        padded = known if len(known) else np.zeros(1)
        total: Floats = below[row] + padded[row] * (times - row * self.step_s)
        return total

    def means(self, edges_s: ArrayLike) -> Floats:
        """Return the mean of the signal in each of h intervals.

        Only known values count. The mean is NaN if an interval has no known value.

        Args:
            edges_s: h + 1 ascending times, the bounds of the intervals.
        """
        edges = np.asarray(edges_s, np.float64)
        known = SignalSeries(self.start_s, self.step_s, np.isfinite(self.values).astype(np.float64))
        weights, totals = np.diff(known.integral(edges)), np.diff(self.integral(edges))
        present = weights > 1e-9 * self.step_s
        return np.where(present, totals / np.where(present, weights, 1.0), np.nan)

    def before(self, time_s: float) -> SignalSeries:
        """Return the steps that begin at or before a time. These are the steps known at that time."""
        count = int(np.clip(math.floor((time_s - self.start_s) / self.step_s) + 1, 0, len(self.values)))
        return SignalSeries(self.start_s, self.step_s, self.values[:count], self.source)

    def shifted(self, seconds: float) -> SignalSeries:
        """Return the series with all times moved by a number of seconds."""
        return SignalSeries(self.start_s + seconds, self.step_s, self.values, self.source)


def from_grid(series: GridSeries, start_s: float, end_s: float, step_s: float | None = None) -> SignalSeries:
    """Convert a part of a grid series to a regular grid of steps. Unknown values are NaN.

    Args:
        series: series of carbon intensity or price.
        start_s: start of the part in seconds. The part is extended to whole steps.
        end_s: end of the part in seconds.
        step_s: length of a step in seconds. If None, the step is the resolution of the series, or one hour if
            the series has no resolution.
    """
    step = step_s or series.resolution_s or DEFAULT_STEP_S
    first, last = math.floor(start_s / step), math.ceil(end_s / step)
    values = np.full(max(0, last - first), np.nan)
    for row in range(len(values)):
        part = series.integrate((first + row) * step, (first + row + 1) * step)
        if part.known_s > 0:
            values[row] = part.value_seconds / part.known_s
    return SignalSeries(first * step, step, values, series.source.text)
