"""Price and carbon intensity of this cluster as columns for other clusters. It needs numpy."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.protocol.cluster_state import MAX_SLOTS, SIGNALS, SignalValues
from slurm_energy.signals import SignalColumns, SignalForecast, constant_forecast
from slurm_energy.signals.forecast import forecast
from slurm_energy.signals.signal_series import from_grid

HISTORY_S: Final = 21 * 86400.0
"""Time before now whose values the forecasts use."""
HORIZON_S: Final = 96 * 3600.0
"""Time after now for which signals are told, if slots of an hour suffice for it."""
_MAX_STEP_S: Final = 3600.0
_MAX_STEPS: Final = 3000


def signal_columns(factors: GridFactors, now_s: float) -> SignalColumns:
    """Return price and carbon intensity from the current slot on, forecast where they are not known ahead.

    The length of the slots is the shortest resolution of the sources, at most an hour.

    Args:
        factors: the grid from `HISTORY_S` before `now_s` until `HORIZON_S` after it.
        now_s: Unix time.
    """
    known = {"price_per_kwh": factors.price, "carbon_g_per_kwh": factors.carbon}
    steps = [
        one.series.resolution_s
        for one in known.values()
        if one is not None and one.series is not None and one.series.resolution_s
    ]
    step_s = max(1.0, min([_MAX_STEP_S, *steps]))
    slots = min(MAX_SLOTS, math.ceil(HORIZON_S / step_s))
    start_s = math.floor(now_s / step_s) * step_s
    edges_s = start_s + step_s * np.arange(slots + 1, dtype=np.float64)
    columns = {
        name: column
        for name, factor in known.items()
        if factor is not None and (column := _column(factor, now_s, edges_s)) is not None
    }
    return SignalColumns(start_s, step_s, **columns)


def signal_values(columns: SignalColumns) -> dict[str, SignalValues]:
    """Return the columns as plain values for a `ClusterState`."""
    return {
        name: SignalValues(_plain(column.mean), _plain(column.deviation), column.source[:200])
        for name in SIGNALS
        if (column := columns.forecast(name)) is not None
    }


def _column(factor: GridFactor, now_s: float, edges_s: np.ndarray) -> SignalForecast | None:
    series, slots = factor.series, len(edges_s) - 1
    if series is not None and (current := series.at(now_s)) is not None:
        if series.is_constant:
            return constant_forecast(current, slots, series.source.text)
        step_s = series.resolution_s or _MAX_STEP_S
        first_s = max(series.samples[0][0], now_s - min(HISTORY_S, _MAX_STEPS * step_s))
        last_s = min(series.end_s or now_s, float(edges_s[-1]))
        return forecast(from_grid(series, first_s, last_s, step_s), now_s, edges_s, math.inf)
    fallback = factor.at(now_s)
    return None if fallback is None else constant_forecast(fallback, slots, "fallback")


def _plain(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else round(value, 9) for value in values.tolist())
