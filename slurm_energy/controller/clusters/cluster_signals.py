"""Price and carbon intensity of this cluster, now and forecast, for exchange with other clusters.

The module needs numpy.
"""

from __future__ import annotations

import math
from typing import Final

from slurm_energy.controller.grid.columns import TimeSlots, grid_columns
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.grid.series import GridSeries
from slurm_energy.protocol.cluster_state import MAX_SLOTS, SIGNALS, SignalValues
from slurm_energy.signals import SignalColumns

HORIZON_S: Final = 96 * 3600.0
"""Length of the forecasts that are sent. If the slots are short, `MAX_SLOTS` limits it further."""
_MAX_STEP_S: Final = 3600.0
_MAX_SOURCE_CHARACTERS: Final = 200


def signal_columns(factors: GridFactors, now_s: float, history_s: float) -> SignalColumns:
    """Return price and carbon intensity for each time slot from the current slot on.

    Values that are unknown because they lie in the future are forecast. The length of a slot is the shortest
    resolution of the two sources, but at most an hour. If the current value of a source is unknown, the
    fallback value of this source is used.

    Args:
        factors: carbon intensity and price from `history_s` before `now_s` until `HORIZON_S` after `now_s`.
        now_s: current time in Unix seconds.
        history_s: number of past seconds that the forecasts use.
    """
    known = {"price_per_kwh": factors.price, "carbon_g_per_kwh": factors.carbon}
    series = {name: one for name, factor in known.items() if (one := _series(factor, now_s)) is not None}
    steps = [one.resolution_s for one in series.values() if one.resolution_s]
    step_s = max(1.0, min([_MAX_STEP_S, *steps]))
    slots = TimeSlots.from_now(now_s, step_s, min(MAX_SLOTS, math.ceil(HORIZON_S / step_s)))
    return SignalColumns(slots.start_s, step_s, **grid_columns(series, now_s, slots, history_s))


def signal_values(columns: SignalColumns) -> dict[str, SignalValues]:
    """Return the forecasts of the signals by name, with plain Python numbers, for a `ClusterState`."""
    return {
        name: SignalValues(
            _plain(column.mean.tolist()),
            _plain(column.deviation.tolist()),
            column.source[:_MAX_SOURCE_CHARACTERS],
        )
        for name in SIGNALS
        if (column := columns.forecast(name)) is not None
    }


def _series(factor: GridFactor | None, now_s: float) -> GridSeries | None:
    """Return the time series of the carbon intensity or price that is used at `now_s`.

    If the series of `factor` has no value at `now_s`, the series of its fallback value is used. The
    result is None if neither series has a value at `now_s`.
    """
    if factor is None:
        return None
    is_known = factor.series is not None and factor.series.at(now_s) is not None
    return factor.series if is_known else factor.fallback


def _plain(values: list[float]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else round(value, 9) for value in values)
