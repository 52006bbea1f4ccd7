"""Signals of one cluster, such as the electricity price and the carbon intensity, at any time.

The module provides actual values, and forecasts from the values that are known at a given time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_energy.signals.columns import Floats, SignalColumns, SignalForecast, SignalName
from slurm_energy.signals.forecast import (
    DAY_S,
    DEFAULT_MODEL,
    ForecastMode,
    HistoryModel,
    backtest_deviation,
    forecast,
    known_until_s,
)
from slurm_energy.signals.pue import DEFAULT_PUE, PueModel
from slurm_energy.signals.signal_series import SignalSeries


@dataclass(frozen=True, slots=True)
class SignalSource:
    """Values of one signal, and the extent to which the future is known.

    Attributes:
        series: past and future values.
        mode: how much of the future is known.
        publication_hour: local hour at which the values of the next day are published; used in the mode
            day-ahead.
        utc_offset_s: local time minus the clock of the series, in seconds; used in the mode day-ahead.
        model: parameters of the statistical forecast.
    """

    series: SignalSeries
    mode: ForecastMode
    publication_hour: float = 13.0
    utc_offset_s: float = 0.0
    model: HistoryModel = DEFAULT_MODEL


class SignalFeed:
    """Signals of one cluster with their forecasts.

    Args:
        sources: for each signal, its values and the extent to which its future is known.
        step_s: length of a slot of the forecast.
        horizon_s: seconds that the forecast covers.
        pue: model of the PUE as a function of the outside temperature.
    """

    def __init__(
        self,
        sources: Mapping[SignalName, SignalSource],
        step_s: float = 900.0,
        horizon_s: float = 2 * DAY_S,
        pue: PueModel = DEFAULT_PUE,
    ) -> None:
        self.sources = dict(sources)
        self.pue = pue
        self._step_s = step_s
        self._slots = max(1, math.ceil(horizon_s / step_s))
        self._columns: SignalColumns | None = None
        self._deviations: dict[SignalName, tuple[float, Floats]] = {}

    def columns(self, now_s: float) -> SignalColumns:
        """Return signals such as price and carbon intensity by time slot, from the current time slot on.

        The values are those that are known or forecast now.
        """
        start_s = math.floor(now_s / self._step_s) * self._step_s
        cached = self._columns
        if cached is not None and cached.start_s == start_s:
            return cached
        edges = start_s + self._step_s * np.arange(self._slots + 1, dtype=np.float64)
        signals = {name.value: self._forecast(name, now_s, edges) for name in self.sources}
        outside = signals.get(SignalName.OUTSIDE.value)
        if outside is not None:
            ratio = self.pue.pue(outside.mean)
            signals["pue"] = SignalForecast(ratio, np.zeros(len(ratio)), outside.source)
        self._columns = SignalColumns(start_s, self._step_s, **signals)
        return self._columns

    def actual(self, name: SignalName) -> SignalSeries | None:
        """Return the true values of a signal, past and future, as the simulator knows them.

        The result is None if the signal has no source.
        """
        source = self.sources.get(name)
        return None if source is None else source.series

    def _forecast(self, name: SignalName, now_s: float, edges: Floats) -> SignalForecast:
        source = self.sources[name]
        known_s = known_until_s(source.mode, now_s, source.publication_hour, source.utc_offset_s)
        model = None if source.mode in (ForecastMode.NONE, ForecastMode.PERFECT) else source.model
        deviation = None if model is None else self._deviation(name, source, now_s)
        return forecast(source.series, now_s, edges, known_s, model=model, deviation=deviation)

    def _deviation(self, name: SignalName, source: SignalSource, now_s: float) -> Floats:
        """Return the standard deviation of the errors of past forecasts.

        The errors are computed once a day.
        """
        day = math.floor(now_s / DAY_S)
        cached = self._deviations.get(name)
        if cached is None or cached[0] != day:
            past = source.series.before(now_s).values
            horizon = math.ceil(self._slots * self._step_s / source.series.step_s) + 1
            cached = day, backtest_deviation(past, horizon, source.series.step_s, source.model)
            self._deviations[name] = cached
        return cached[1]
