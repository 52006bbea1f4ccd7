"""Forecasts of the signals of the cluster (price, carbon intensity and others) as numpy columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from slurm_energy.config import Config
from slurm_energy.controller.grid.columns import TimeSlots, grid_columns
from slurm_energy.grid.series import GridSeries
from slurm_energy.signals import SignalColumns, SignalName
from slurm_energy.signals.forecast import forecast
from slurm_energy.signals.signal_series import SignalSeries

_HORIZON_SLACKS: Final = 2.0
"""Length of the forecast as a multiple of the maximum slack: jobs run beyond their latest start."""
_MAX_SLOTS: Final = 5000
_MIN_SLOTS: Final = 4


def signal_columns(
    config: Config,
    series: Mapping[str, GridSeries],
    now_s: float,
    files: Mapping[SignalName, SignalSeries] | None = None,
) -> SignalColumns:
    """Return the forecasts of all signals for the time slots that deferral plans with.

    The forecasts begin with the current time slot. `grid_columns` computes the forecasts of the series.

    Args:
        config: configuration with the length of a time slot, the maximum slack and the days of history.
        series: past and known future values of each signal, by its name.
        now_s: Unix seconds.
        files: further signals from files of the site; None means that the site has no such files.
    """
    step_s = config.deferral.slot_s
    wanted = math.ceil(_HORIZON_SLACKS * config.deferral.max_slack_s / step_s) + 1
    slots = TimeSlots.from_now(now_s, step_s, min(max(wanted, _MIN_SLOTS), _MAX_SLOTS))
    columns = grid_columns(series, now_s, slots, 86400.0 * config.signals.history_days)
    for name, known in (files or {}).items():
        if np.isfinite(known.at(now_s)):
            columns[name.value] = forecast(known, now_s, slots.edges_s, math.inf)
    return SignalColumns(slots.start_s, step_s, **columns)
