"""Detection of the period of a program's main loop in its power or utilisation.

The detector prefers no answer to a wrong one. It takes candidates from the autocorrelation (computed by FFT)
and returns a period only if shorter and longer alternatives are clearly worse, if the period repeats in most
parts of the series, and if it cannot be the alias of a shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

MIN_SAMPLES: Final = 48
MIN_PERIODS: Final = 5.0
MAX_REGULAR_INTERVAL_S: Final = 0.25
"""At longer regular intervals most loops of real programs are aliased, and aliases look like true periods."""
_MIN_SAMPLES_PER_PERIOD: Final = 5.0
_MAX_GAP: Final = 2.5
_MIN_VARIATION: Final = 0.004
_MIN_CORRELATION: Final = 0.5
_CLEARLY_BETTER: Final = 0.04
_NOT_CLEARLY_WORSE: Final = 0.10
_MIN_CONTRAST: Final = 0.4
_UPSAMPLING: Final = 4
_POINTS_PER_PERIOD: Final = 40
_SEARCH: Final = 6
_SEGMENT_PERIODS: Final = 3
_MIN_GOOD: Final = 0.7
_GOOD: Final = 0.05
_MAX_DRIFT: Final = 0.03
_MIN_JITTER: Final = 0.007
_MAX_JITTER: Final = 0.08
_REGULAR: Final = 0.05

Array = Any


@dataclass(frozen=True, slots=True)
class Period:
    """A verified period.

    Attributes:
        seconds: length of the period.
        relative_error: standard error of `seconds` divided by `seconds`.
        count: number of periods in the series.
        correlation: correlation of the series with itself one period later.
    """

    seconds: float
    relative_error: float
    count: float
    correlation: float


@dataclass(frozen=True, slots=True)
class Detection:
    """Result of a period detection: a period, or the reason why none was accepted."""

    period: Period | None
    reason: str


def detect_period(times_s: Sequence[float], values: Sequence[float]) -> Detection:
    """Return the period of a series.

    Args:
        times_s: increasing sample times.
        values: one value per time, for example watts.
    """
    times, series = np.asarray(times_s, dtype=float), np.asarray(values, dtype=float)
    times, series = _longest_part(times, series)
    if len(times) < MIN_SAMPLES:
        return Detection(None, "too few samples without a gap")
    intervals = np.diff(times)
    interval_s = float(np.mean(intervals))
    regular = float(np.std(intervals)) < _REGULAR * interval_s
    if regular and interval_s > MAX_REGULAR_INTERVAL_S:
        return Detection(None, "regular sampling at this interval cannot exclude shorter periods")
    grid = np.linspace(times[0], times[-1], len(times))
    flat = _flattened(np.interp(grid, times, series))
    scale = max(abs(float(np.mean(series))), 1e-9)
    if float(np.std(flat)) < _MIN_VARIATION * scale:
        return Detection(None, "the series hardly varies")
    correlation = _autocorrelation(flat)
    lag, reason = _base_lag(correlation, len(flat))
    if lag is None:
        return Detection(None, reason)
    return _verified(
        flat,
        lag,
        float(np.interp(lag, np.arange(len(correlation)) / _UPSAMPLING, correlation)),
        interval_s,
        regular,
        times,
        series,
    )


def _longest_part(times: Array, series: Array) -> tuple[Array, Array]:
    """Return the longest part of a series without a gap or an unknown value."""
    known = np.isfinite(series) & np.isfinite(times)
    times, series = times[known], series[known]
    if len(times) < MIN_SAMPLES:
        return times, series
    intervals = np.diff(times)
    breaks = np.flatnonzero(intervals > _MAX_GAP * np.median(intervals)) + 1
    edges = np.concatenate(([0], breaks, [len(times)]))
    longest = int(np.argmax(np.diff(edges)))
    part = slice(int(edges[longest]), int(edges[longest + 1]))
    return times[part], series[part]


def _flattened(series: Array) -> Array:
    """Return a series without outliers, trend and level shifts; its moving median over a quarter is 0."""
    low, high = np.percentile(series, (1, 99))
    clipped = np.clip(series, low, high)
    width = max(8, len(series) // 4)
    step = max(1, width // 8)
    windows = np.lib.stride_tricks.sliding_window_view(clipped, width)[::step]
    levels = (np.median(windows, axis=1) + np.mean(windows, axis=1)) / 2
    centres = np.arange(len(levels)) * step + (width - 1) / 2
    flat = clipped - np.interp(np.arange(len(series)), centres, levels)
    return flat - np.mean(flat)


def _autocorrelation(flat: Array) -> Array:
    """Return the normalised autocorrelation at multiples of a quarter of the sampling interval."""
    count = len(flat)
    size = 1 << (2 * count - 1).bit_length()
    power = np.abs(np.fft.rfft(flat, size)) ** 2
    products = np.fft.irfft(power, size * _UPSAMPLING)[: count * _UPSAMPLING // 2] * _UPSAMPLING
    squares = np.concatenate(([0.0], np.cumsum(flat * flat)))
    lags = np.arange(count // 2)
    energy = np.sqrt(squares[count - lags] * (squares[count] - squares[lags]))
    fine = np.interp(np.arange(len(products)) / _UPSAMPLING, lags, energy)
    return products / np.maximum(fine, 1e-12)


def _base_lag(correlation: Array, count: int) -> tuple[float | None, str]:
    """Return the lag, in samples, of the shortest repetition that no other lag contradicts."""
    first = int(_MIN_SAMPLES_PER_PERIOD * _UPSAMPLING)
    last = int(count / MIN_PERIODS * _UPSAMPLING)
    middle = correlation[1:-1]
    peaks = np.flatnonzero((middle >= correlation[:-2]) & (middle > correlation[2:])) + 1
    zero = np.flatnonzero(correlation < 0.5)
    start = int(zero[0]) if len(zero) else len(correlation)
    peaks = peaks[(peaks > start) & (peaks <= last) & (correlation[peaks] > 0.2)]
    if not len(peaks):
        return None, "no repetition"
    heights = correlation[peaks]
    best = float(heights.max())
    if best < _MIN_CORRELATION:
        return None, "no clear repetition"
    chosen = int(np.flatnonzero(heights >= best - _CLEARLY_BETTER)[0])
    lag = int(peaks[chosen])
    if np.any(heights[:chosen] > best - _NOT_CLEARLY_WORSE):
        return None, "a shorter period is nearly as likely"
    if lag < first:
        return None, "too few samples per period"
    if heights[chosen] - float(correlation[:lag].min()) < _MIN_CONTRAST:
        return None, "no clear repetition"
    for multiple in (2, 3):
        near = correlation[int(multiple * lag * 0.94) : int(multiple * lag * 1.06) + 1]
        if not len(near) or float(near.max()) < 0.6 * heights[chosen]:
            return None, "the repetition does not last"
    return lag / _UPSAMPLING, ""


def _verified(
    flat: Array, lag: float, correlation: float, interval_s: float, regular: bool, times: Array, series: Array
) -> Detection:
    """Return the period near a lag if it is the same in most parts of the series and is no alias."""
    local = _local_ratios(flat, lag)
    if len(local) < 3:
        return Detection(None, "too few periods")
    median = float(np.median(local))
    good = np.abs(local / median - 1) <= _GOOD
    if float(np.mean(good)) < _MIN_GOOD:
        return Detection(None, "the period varies")
    third = max(1, len(local) // 3)
    if abs(float(np.median(local[:third]) / np.median(local[-third:])) - 1) > _MAX_DRIFT:
        return Detection(None, "the period drifts")
    spread = float(np.std(local[good] / median))
    samples = lag * median
    jitter = spread * math.sqrt(_SEGMENT_PERIODS)
    limit = _MIN_JITTER * math.sqrt(samples) if regular else _MAX_JITTER
    if jitter > limit:
        return Detection(None, "the period varies")
    seconds = samples * interval_s
    if not regular and _is_alias(times, series, seconds, interval_s):
        return Detection(None, "a period shorter than the sampling interval is as likely")
    count = len(flat) / samples
    error = math.hypot(1.25 * spread / math.sqrt(max(1.0, len(local) / _SEGMENT_PERIODS)), 0.002)
    return Detection(Period(seconds, error, count, correlation), "")


def _local_ratios(flat: Array, lag: float) -> Array:
    """Return the local period, divided by `lag`, at steps of one period; NaN-free, unclear parts left out."""
    points = _POINTS_PER_PERIOD
    positions = np.arange(0, len(flat) - 1, lag / points)
    fine = np.interp(positions, np.arange(len(flat)), flat)
    width = _SEGMENT_PERIODS * points
    last = len(fine) - width - points - _SEARCH
    if last <= 0:
        return np.empty(0)
    starts = np.arange(0, last, points)
    squares = np.concatenate(([0.0], np.cumsum(fine * fine)))
    shifts = np.arange(points - _SEARCH, points + _SEARCH + 1)
    scores = np.empty((len(shifts), len(starts)))
    base = squares[starts + width] - squares[starts]
    for row, shift in enumerate(shifts):
        sums = np.concatenate(([0.0], np.cumsum(fine[: len(fine) - shift] * fine[shift:])))
        energy = squares[starts + shift + width] - squares[starts + shift]
        scores[row] = (sums[starts + width] - sums[starts]) / np.sqrt(np.maximum(base * energy, 1e-12))
    top = np.clip(np.argmax(scores, axis=0), 1, len(shifts) - 2)
    columns = np.arange(len(starts))
    left, peak, right = scores[top - 1, columns], scores[top, columns], scores[top + 1, columns]
    bend = left - 2 * peak + right
    offset = np.where(bend < 0, 0.5 * (left - right) / np.where(bend < 0, bend, -1.0), 0.0)
    ratios = (shifts[top] + np.clip(offset, -1, 1)) / points
    ratios[(peak < 0.3)] = 0.0  # counts as a part without the period
    return ratios


def _is_alias(times: Array, series: Array, seconds: float, interval_s: float) -> bool:
    """Return whether a frequency above the sampling rate explains irregular samples as well as the period."""
    middle = np.concatenate(([times[0]], (times[1:] + times[:-1]) / 2))
    flat = series - np.mean(series)
    own = max(_power(at, flat, 1 / seconds, seconds) for at in (times, middle))
    for order in (1, 2, 3):
        for sign in (-1, 1):
            frequency = order / interval_s + sign / seconds
            if max(_power(at, flat, frequency, seconds) for at in (times, middle)) > 0.8 * own:
                return True
    return False


def _power(times: Array, flat: Array, frequency: float, seconds: float) -> float:
    """Return the power of a sinusoid in the series, added up over parts of eight periods."""
    parts = np.floor((times - times[0]) / (8 * seconds)).astype(int)
    best = 0.0
    for detune in (-0.5, 0.0, 0.5):
        waves = flat * np.exp(-2j * np.pi * (frequency + detune / (8 * seconds)) * (times - times[0]))
        sums = np.bincount(parts, waves.real) ** 2 + np.bincount(parts, waves.imag) ** 2
        best = max(best, float(sums.sum()))
    return best
