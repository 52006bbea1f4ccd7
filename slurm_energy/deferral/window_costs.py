"""Expected cost or emissions of a job as a function of its start.

The cost is the integral of the job's power multiplied by the price of energy over time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.scheduling.queue import Floats
from slurm_energy.signals import SignalColumns, SignalName

_MAX_SLOTS: Final = 4 * 24 * 14
"""Maximum number of planned slots: two weeks of 15 minutes. Later starts are not planned."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Cost of drawing one watt from a fixed time to any later time. It is a piecewise linear function.

    Attributes:
        start_s: start of the first time step.
        step_s: length of a time step in seconds.
        rate: cost of one joule in each time step, shape (h,).
        deviation: standard deviation of `rate`, shape (h,).
        tail_rate, tail_deviation: values of `rate` and `deviation` after the last step.
    """

    start_s: float
    step_s: float
    rate: Floats
    deviation: Floats
    tail_rate: float
    tail_deviation: float

    def cost(self, start_s: ArrayLike, end_s: ArrayLike) -> Floats:
        """Return the expected cost of the energy that a power of one watt uses between two times."""
        below = self._cumulative(self.rate)
        until_end = self._up_to(end_s, self.rate, below, self.tail_rate)
        return until_end - self._up_to(start_s, self.rate, below, self.tail_rate)

    def spread(self, start_s: ArrayLike, end_s: ArrayLike) -> Floats:
        """Return the standard deviation of `cost`.

        The errors of all steps are assumed to be fully correlated, so that the spread is not underestimated.
        """
        below = self._cumulative(self.deviation)
        spread: Floats = self._up_to(end_s, self.deviation, below, self.tail_deviation)
        spread = spread - self._up_to(start_s, self.deviation, below, self.tail_deviation)
        return np.maximum(spread, 0.0)

    def _cumulative(self, values: Floats) -> Floats:
        return np.concatenate([[0.0], np.cumsum(values) * self.step_s])

    def _up_to(self, time_s: ArrayLike, values: Floats, below: Floats, tail: float) -> Floats:
        elapsed = np.maximum(np.asarray(time_s, np.float64) - self.start_s, 0.0)
        row = np.minimum((elapsed / self.step_s).astype(np.int64), len(values))
        slope = np.append(values, tail)
        total: Floats = below[row] + slope[row] * (elapsed - row * self.step_s)
        return total


def cost_curve(signals: SignalColumns | None, signal: SignalName) -> CostCurve | None:
    """Return the cost of energy over time, computed from a price or from the carbon intensity.

    If the outside temperature is known, the cost includes the PUE. A time step without a known value of the
    signal gets the mean and the standard deviation of the other time steps.

    Args:
        signals: signals of the cluster.
        signal: price or carbon intensity.

    Returns:
        The cost over time; None if the signal is unknown.
    """
    column = None if signals is None else signals.forecast(signal)
    if signals is None or column is None or not column.known:
        return None
    factor = signals.site_factor() / JOULES_PER_KWH
    rate, deviation = column.mean * factor, np.nan_to_num(column.deviation * factor)
    known = np.isfinite(rate)
    mean, spread = float(np.mean(rate[known])), float(np.std(rate[known]))
    spread = math.hypot(spread, float(np.max(deviation[known])))
    rate, deviation = np.where(known, rate, mean), np.where(known, deviation, spread)
    return CostCurve(signals.start_s, signals.step_s, rate, deviation, mean, spread)


def candidate_starts(now_s: float, latest_s: float, slot_s: float) -> Floats:
    """Return the times at which deferrable jobs may start.

    These are the current time and all later multiples of the slot length up to `latest_s`.
    """
    first = math.floor(now_s / slot_s) + 1
    last = math.floor(min(latest_s, (first + _MAX_SLOTS - 1) * slot_s) / slot_s)
    return np.concatenate([[now_s], np.arange(first, last + 1) * slot_s])


def start_costs(curve: CostCurve, starts_s: Floats, time_s: Floats, watts: Floats) -> tuple[Floats, Floats]:
    """Return the expected cost of each job at each possible start, and the standard deviation of that cost.

    The costs and the standard deviations each have the shape (n, starts).

    Args:
        curve: cost of energy over time.
        starts_s: candidate starts, shape (starts,).
        time_s: predicted run times, shape (n,).
        watts: predicted mean powers, shape (n,).
    """
    ends = starts_s + time_s[:, None]
    cost, spread = curve.cost(starts_s, ends), curve.spread(starts_s, ends)
    return watts[:, None] * cost, watts[:, None] * spread
