"""Forecasts of carbon intensity, price and similar series in consecutive time slots. The module needs numpy.

Deferral and the choice among clusters use these forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.grid.series import GridSeries
from slurm_energy.signals import SignalForecast, SignalName, constant_forecast
from slurm_energy.signals.columns import Floats
from slurm_energy.signals.forecast import forecast
from slurm_energy.signals.signal_series import from_grid

_MAX_STEPS: Final = 20_000


@dataclass(frozen=True, slots=True)
class TimeSlots:
    """Consecutive time slots.

    Attributes:
        start_s: start of the first slot in Unix time, a multiple of `step_s`.
        step_s: length of a slot in seconds.
        count: number of slots.
    """

    start_s: float
    step_s: float
    count: int

    @classmethod
    def from_now(cls, now_s: float, step_s: float, count: int) -> TimeSlots:
        """Return consecutive slots, the first of which contains `now_s`."""
        return cls(math.floor(now_s / step_s) * step_s, step_s, count)

    @property
    def edges_s(self) -> Floats:
        """Unix times at which the slots start, and at which the last slot ends, shape (count + 1,)."""
        edges: Floats = self.start_s + self.step_s * np.arange(self.count + 1, dtype=np.float64)
        return edges


def grid_columns(
    series: Mapping[str, GridSeries], now_s: float, slots: TimeSlots, history_s: float
) -> dict[str, SignalForecast]:
    """Return the forecast of each series whose current value is known, by the name of its signal.

    Future values that the source of a series states, such as day-ahead prices, are used unchanged. Later
    values are forecast from past values. A series without a current value is left out, because its source is
    missing or outdated.

    Args:
        series: past and future values by name of the signal.
        now_s: Unix seconds.
        slots: the time slots.
        history_s: length of the past that the forecasts use.
    """
    return {
        SignalName(name).value: column
        for name, one in series.items()
        if (column := _column(one, now_s, slots, history_s)) is not None
    }


def _column(series: GridSeries, now_s: float, slots: TimeSlots, history_s: float) -> SignalForecast | None:
    current = series.at(now_s)
    if current is None:
        return None
    if series.is_constant:
        return constant_forecast(current, slots.count, series.source.text)
    edges_s = slots.edges_s
    step_s = series.resolution_s or slots.step_s
    first_s = max(series.samples[0][0], now_s - min(history_s, _MAX_STEPS * step_s))
    last_s = min(series.end_s or now_s, float(edges_s[-1]))
    return forecast(from_grid(series, first_s, last_s, step_s), now_s, edges_s, math.inf)
