"""Forecasts of signals: values known ahead, and a statistical forecast from the past.

The statistical forecast for a time of day is a blend of two means. One is the mean of the values at that time
on recent days, the other is the mean on the same weekday of recent weeks. The deviation of the latest values
from this blend is added, and fades with the horizon. The standard deviation of the forecast for a horizon is
the error that the same forecast had for this horizon at earlier times. The forecast reads no value after the
current step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from slurm_energy.signals.columns import Floats, SignalForecast
from slurm_energy.signals.signal_series import SignalSeries

DAY_S: Final = 86_400.0
WEEK_DAYS: Final = 7


class ForecastMode(StrEnum):
    """Extent to which the future of a signal is known."""

    PERFECT = "perfect"
    """All future values, with certainty."""
    DAY_AHEAD = "day-ahead"
    """The values of the current day, and from the hour of publication those of the next day; then history."""
    HISTORY = "history"
    """The past only: the statistical forecast."""
    NONE = "none"
    """The current value only."""


@dataclass(frozen=True, slots=True)
class HistoryModel:
    """Parameters of the statistical forecast of a signal, such as a price, from its past values.

    The forecast blends the mean of recent days with the mean of the same weekday in recent weeks. It then
    adds the latest deviation from this blend. The defaults were chosen on the first third of real series.

    Attributes:
        days: number of recent days whose mean is used.
        weeks: number of recent weeks whose same weekday is used.
        week_weight: weight of the recent weeks in the blend, 0 to 1; the recent days have the rest.
        fade_s: time after which the latest deviation is weighted by 1/e.
        latest_s: time over which the latest deviation is averaged.
        backtest_days: number of past days over which the error of forecasts is measured.
        backtest_step_s: time between two of the forecasts by which the error is measured.
    """

    days: int = 2
    weeks: int = 3
    week_weight: float = 0.5
    fade_s: float = 12 * 3600.0
    latest_s: float = 3600.0
    backtest_days: int = 21
    backtest_step_s: float = 7 * 3600.0


DEFAULT_MODEL: Final = HistoryModel()


def expected(values: Floats, origins: np.ndarray, horizon: int, step_s: float, model: HistoryModel) -> Floats:
    """Forecast the steps after each of several points in time (origins).

    Return the expected values, shape (origins, horizon).

    Args:
        values: values of all steps, shape (n,). A forecast uses only the values before its origin.
        origins: for each forecast, the row of the first unknown step, shape (b,).
        horizon: number of steps to forecast.
        step_s: length of a step in seconds.
        model: parameters of the statistical forecast.
    """
    day = max(1, round(DAY_S / step_s))
    latest = max(1, round(model.latest_s / step_s))
    offsets = np.arange(-latest, horizon)
    # The latest values are compared with the blend of the values before them.
    known = np.where(offsets < 0, origins[:, None] - latest, origins[:, None])
    rows = origins[:, None] + offsets
    profile = _blend(values, rows, known, day, model)
    errors = _row_values(values, rows[:, :latest]) - profile[:, :latest]
    latest_error = np.nan_to_num(_mean(errors, axis=1))
    fade = np.exp(-(np.arange(horizon) + 1) * step_s / model.fade_s)
    result: Floats = profile[:, latest:] + latest_error[:, None] * fade
    return result


def _blend(values: Floats, rows: np.ndarray, known: np.ndarray, day: int, model: HistoryModel) -> Floats:
    """Forecast the values of a time series at the given times from the past of the series.

    The forecast is a weighted mean of two means. One is the mean over the same time of day on recent days.
    The other is the mean over the same time and weekday in recent weeks. Only values before index `known`
    are used.
    """
    days = _same_phase(values, rows, known, day, model.days)
    weeks = _same_phase(values, rows, known, day * WEEK_DAYS, model.weeks)
    both = (1.0 - model.week_weight) * days + model.week_weight * weeks
    blend = np.where(np.isnan(both), np.where(np.isnan(days), weeks, days), both)
    if np.any(np.isnan(blend)):
        # Hours without any past value get the mean of the last days, or of all values if there are fewer.
        recent = _mean(_row_values(values, known[..., None] - 1 - np.arange(3 * day)), axis=-1)
        blend = np.where(np.isnan(blend), recent, blend)
    return blend


def _same_phase(values: Floats, rows: np.ndarray, known: np.ndarray, period: int, count: int) -> Floats:
    """Forecast a periodic series by the mean of earlier values at the same phase of the period.

    The same phase is, for example, the same time of day. For each index in `rows`, the values at earlier
    indices are used whose distance from this index is a multiple of `period`. Only values before the index
    `known` are known. Of these, the last `count` values are averaged.
    """
    periods = np.maximum(1, -((known - 1 - rows) // period))
    last = rows - periods * period
    return _mean(_row_values(values, last[..., None] - period * np.arange(count)), axis=-1)


def _row_values(values: Floats, rows: np.ndarray) -> Floats:
    inside = (rows >= 0) & (rows < len(values))
    if not len(values):
        return np.full(rows.shape, np.nan)
    return np.where(inside, values[np.where(inside, rows, 0)], np.nan)


def _mean(values: Floats, axis: int) -> Floats:
    """Return the mean over the known values; NaN if no value is known."""
    known = np.isfinite(values)
    count = np.sum(known, axis=axis)
    total = np.sum(np.where(known, values, 0.0), axis=axis)
    return np.where(count > 0, total / np.maximum(1, count), np.nan)


def backtest_deviation(values: Floats, horizon: int, step_s: float, model: HistoryModel) -> Floats:
    """Return the typical error of past forecasts for each step of the horizon, shape (horizon,).

    Args:
        values: all values that are known now, shape (n,).
        horizon: number of steps.
        step_s: length of a step.
        model: parameters of the statistical forecast.

    Returns:
        Root mean square errors. They do not decrease with the horizon. All errors are NaN if there
            are too few past values.
    """
    count = len(values)
    stride = max(1, round(model.backtest_step_s / step_s))
    begin = max(round(2 * DAY_S / step_s), count - round(model.backtest_days * DAY_S / step_s))
    origins = np.arange(count - 1, begin, -stride)
    if not len(origins):
        return np.full(horizon, _spread(values))
    forecast = expected(values, origins, horizon, step_s, model)
    rows = origins[:, None] + np.arange(horizon)
    squares = np.square(_row_values(values, rows) - forecast)
    by_step = _mean(squares, axis=0)
    by_step = np.where(np.isnan(by_step), np.nan_to_num(_spread(values)) ** 2, by_step)
    # Few forecasts measure each step: average over neighbours, and let the error grow with the horizon.
    width = min(horizon, max(1, round(3 * 3600.0 / step_s)))
    padded = np.pad(by_step, (width // 2, width - 1 - width // 2), mode="edge")
    smooth = np.convolve(padded, np.full(width, 1.0 / width), mode="valid")
    deviation: Floats = np.sqrt(np.maximum.accumulate(smooth))
    return deviation


def _spread(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.std(known)) if len(known) > 1 else math.nan


def known_until_s(
    mode: ForecastMode, now_s: float, publication_hour: float = 13.0, utc_offset_s: float = 0.0
) -> float:
    """Return the time up to which values are known ahead.

    Args:
        mode: extent to which the future is known.
        now_s: Unix time in seconds.
        publication_hour: local hour from which the values of the next day are known. Day-ahead auctions of
            the European and the Californian market publish by 13:00.
        utc_offset_s: local time minus UTC in seconds.
    """
    if mode is ForecastMode.PERFECT:
        return math.inf
    if mode is not ForecastMode.DAY_AHEAD:
        return now_s
    local_s = now_s + utc_offset_s
    midnight_s = math.floor(local_s / DAY_S) * DAY_S
    days = 2 if local_s - midnight_s >= publication_hour * 3600 else 1
    return midnight_s + days * DAY_S - utc_offset_s


def forecast(
    series: SignalSeries,
    now_s: float,
    edges_s: Floats,
    known_s: float,
    *,
    model: HistoryModel | None = DEFAULT_MODEL,
    deviation: Floats | None = None,
) -> SignalForecast:
    """Return the forecast of a signal for consecutive slots.

    Args:
        series: the values. After the current step, only steps that end by `known_s` are read.
        now_s: current time in seconds.
        edges_s: h + 1 ascending times, which are the limits of the slots.
        known_s: time up to which values are known ahead; see `known_until_s`.
        model: parameters of the statistical forecast, which is used where values are not known ahead. None
            means that no statistical forecast is used.
        deviation: result of `backtest_deviation` for this series, if already computed. If None, it is
            computed here.
    """
    step_s = series.step_s
    present = series.before(max(now_s, min(known_s, series.end_s) - step_s))
    horizon = max(0, math.ceil((float(edges_s[-1]) - present.end_s) / step_s - 1e-9))
    mean, spread = present.values, np.zeros(len(present.values))
    source = series.source
    if model is not None and horizon and np.any(np.isfinite(present.values)):
        origin = np.array([len(present.values)])
        later = expected(present.values, origin, horizon, step_s, model)[0]
        if deviation is None:
            past = series.before(now_s).values
            deviation = backtest_deviation(past, horizon, step_s, model)
        errors = np.pad(deviation, (0, max(0, horizon - len(deviation))), mode="edge")[:horizon]
        mean, spread = np.concatenate([mean, later]), np.concatenate([spread, errors])
        source = f"{source}, forecast from its history".lstrip(", ")
    expected_series = SignalSeries(series.start_s, step_s, mean)
    deviations = SignalSeries(series.start_s, step_s, np.where(np.isnan(mean), np.nan, spread))
    return SignalForecast(expected_series.means(edges_s), deviations.means(edges_s), source)
