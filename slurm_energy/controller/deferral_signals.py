"""Signals of the cluster as columns for deferral, from the grid's values in force. It needs numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from slurm_energy.config import Config
from slurm_energy.grid.series import GridSeries
from slurm_energy.signals import SignalColumns, SignalForecast, SignalName, constant_forecast
from slurm_energy.signals.forecast import forecast
from slurm_energy.signals.signal_series import SignalSeries, from_grid

_HORIZON_SLACKS: Final = 2.0
"""Length of the forecast as a multiple of the maximum slack: jobs run beyond their latest start."""
_MAX_SLOTS: Final = 5000
_MAX_STEPS: Final = 20_000
_MIN_SLOTS: Final = 4


def signal_columns(
    config: Config,
    series: Mapping[str, GridSeries],
    now_s: float,
    files: Mapping[SignalName, SignalSeries] | None = None,
) -> SignalColumns:
    """Return the forecasts of all signals from the current slot on.

    Values that a source knows ahead, such as day-ahead prices, are used as they are. Later values are
    forecast from the past. A signal whose current value is unknown is left out: its source is missing or
    stale.

    Args:
        config: slot, maximum slack and days of history.
        series: past and future values by signal.
        now_s: Unix seconds.
        files: further signals from files of the site; None: there are none.
    """
    step_s = config.deferral.slot_s
    start_s = math.floor(now_s / step_s) * step_s
    wanted = math.ceil(_HORIZON_SLACKS * config.deferral.max_slack_s / step_s) + 1
    slots = min(max(wanted, _MIN_SLOTS), _MAX_SLOTS)
    edges_s = start_s + step_s * np.arange(slots + 1, dtype=np.float64)
    history_s = 86400.0 * config.signals.history_days
    columns = {
        SignalName(name).value: column
        for name, one in series.items()
        if (column := _column(one, now_s, edges_s, history_s)) is not None
    }
    for name, known in (files or {}).items():
        if np.isfinite(known.at(now_s)):
            columns[name.value] = forecast(known, now_s, edges_s, math.inf)
    return SignalColumns(start_s, step_s, **columns)


def _column(series: GridSeries, now_s: float, edges_s: np.ndarray, history_s: float) -> SignalForecast | None:
    current = series.at(now_s)
    if current is None:
        return None
    if series.is_constant:
        return constant_forecast(current, len(edges_s) - 1, series.source.text)
    step_s = series.resolution_s or float(edges_s[1] - edges_s[0])
    first_s = max(series.samples[0][0], now_s - min(history_s, _MAX_STEPS * step_s))
    last_s = min(series.end_s or now_s, float(edges_s[-1]))
    known = from_grid(series, first_s, last_s, step_s)
    return forecast(known, now_s, edges_s, math.inf)
