"""Detection of the period of a program's main loop in its power or utilisation.

The detector prefers no result to a wrong result. Candidates come from the autocorrelation, which is computed
by FFT. A period is returned only if four conditions hold:

- shorter and longer alternatives are clearly worse;
- the period repeats in most parts of the series;
- nothing else in the series is periodic;
- the period cannot be an artefact of sampling a shorter period (an alias).

Regularly sampled series have no result, because samples at regular times cannot exclude an alias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_energy.tuning.progress import period_checks as checks
from slurm_energy.tuning.progress.period_checks import UPSAMPLING

MIN_SAMPLES: Final = 48
MIN_PERIODS: Final = 5.0
_MIN_SAMPLES_PER_PERIOD: Final = 5.0
_REGULAR: Final = 0.05
"""Relative variation of the sampling interval below which the sampling counts as regular. At regular times a
step shorter than the interval and a longer step can have identical samples."""
_MAX_GAP: Final = 5.0
_MAX_JITTER: Final = 0.08
_MIN_VARIATION: Final = 0.004
_MIN_CORRELATION: Final = 0.5
_CLEARLY_BETTER: Final = 0.04
_NOT_CLEARLY_WORSE: Final = 0.10
_NOT_CLEARLY_WORSE_IN_PARTS: Final = 0.2
_MIN_CONTRAST: Final = 0.4
_MIN_LASTING: Final = {2: 0.6, 3: 0.45}
"""Minimum correlation after two and three periods, relative to the correlation after one."""
_MAX_DIFFERENCE: Final = 0.03
_MIN_PERIODS_FOR_THIRDS: Final = 12.0

Array = Any


@dataclass(frozen=True, slots=True)
class Period:
    """Length of the repeating pattern (period) of a program's power or utilisation.

    The period has passed all checks of its detection.

    Attributes:
        seconds: length of the period.
        relative_error: standard error of `seconds` divided by `seconds`.
        count: number of periods in the series.
        correlation: correlation of the series with itself, shifted by one period.
    """

    seconds: float
    relative_error: float
    count: float
    correlation: float


@dataclass(frozen=True, slots=True)
class Detection:
    """Result of the search for a period in a job's power.

    The result is a period, or the reason why no period was accepted.
    """

    period: Period | None
    reason: str


class _RejectedError(Exception):
    """A series of power values has no acceptable period. The message states the reason."""


def detect_period(times_s: Sequence[float], values: Sequence[float]) -> Detection:
    """Return the period of a series, or the reason why no period was accepted.

    Args:
        times_s: increasing sample times. The times must be irregular (± 20 %), so that the
            detector can exclude periods shorter than the sampling interval. With regular times, no
            period is accepted.
        values: one value per time, for example watts. NaN is unknown.
    """
    try:
        with np.errstate(all="ignore"):
            return Detection(_detected(np.asarray(times_s, dtype=float), np.asarray(values, dtype=float)), "")
    except _RejectedError as rejected:
        return Detection(None, str(rejected))


def _detected(times: Array, series: Array) -> Period:
    """Detect the period with which a series of power values repeats, and return it.

    Raises:
        _RejectedError: no period is acceptable.
    """
    times, series = _longest_part(times, series)
    _require(len(times) >= MIN_SAMPLES, "too few samples without a gap")
    interval_s = float(times[-1] - times[0]) / (len(times) - 1)
    is_regular = float(np.std(np.diff(times))) < _REGULAR * interval_s
    _require(not is_regular, "regular sampling cannot exclude shorter periods")
    positions = (times - times[0]) / interval_s
    flat = _flattened(series)
    variation, mean = float(np.std(flat)), abs(float(np.mean(series)))
    _require(0 < variation < np.inf and variation >= _MIN_VARIATION * mean, "the series hardly varies")
    even = np.interp(np.arange(len(flat)), positions, flat)
    correlation = checks.autocorrelation(even)
    lag = _base_lag(correlation, len(even))
    _require(_is_same_at_both_ends(even, lag), "the beginning and the end differ")
    local = checks.local_periods(even, lag)
    _require(local is not None, "too few periods")
    assert local is not None
    _require(local.is_stable, "the period varies")
    _require(not local.is_drifting, "the period drifts")
    _require(not local.is_interrupted_often, "the repetition is interrupted often")
    lag *= local.median
    _require(local.jitter <= _MAX_JITTER, "the period varies")
    _require(not checks.has_simpler_fold(positions, flat, lag), "a shorter period is as likely")
    _require(checks.has_fundamental(even, lag), "only parts of the period are periodic")
    _require(not checks.has_other_period(even, lag), "another loop is periodic too")
    _require(not checks.is_part_of_cycle(even, lag), "the period is a part of a longer step")
    _require(not checks.contains_fast_loop(even, lag), "a faster loop runs within the period")
    _require(not checks.may_be_pauses(even, lag), "too few periods of short pauses")
    _require(
        not checks.is_alias(positions, flat, lag),
        "a period shorter than the sampling interval is as likely",
    )
    height = float(np.interp(lag * UPSAMPLING, np.arange(len(correlation)), correlation))
    return Period(lag * interval_s, local.relative_error, len(even) / lag, height)


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise _RejectedError(reason)


def _longest_part(times: Array, series: Array) -> tuple[Array, Array]:
    """Return the longest part of a series without a gap or an unknown value."""
    known = np.isfinite(series) & np.isfinite(times)
    times, series = times[known], series[known]
    if len(times) < MIN_SAMPLES:
        return times, series
    intervals = np.diff(times)
    breaks = np.flatnonzero((intervals > _MAX_GAP * np.median(intervals)) | (intervals <= 0)) + 1
    edges = np.concatenate(([0], breaks, [len(times)]))
    longest = int(np.argmax(np.diff(edges)))
    part = slice(int(edges[longest]), int(edges[longest + 1]))
    return times[part], series[part]


def _flattened(series: Array) -> Array:
    """Return a series without outliers, trend and level shifts."""
    low, high = np.percentile(series, (1, 99))
    clipped = np.clip(series, low, high)
    width = max(8, len(series) // 4)
    step = max(1, width // 8)
    windows = np.lib.stride_tricks.sliding_window_view(clipped, width)[::step]
    levels = (np.median(windows, axis=1) + np.mean(windows, axis=1)) / 2
    centres = np.arange(len(levels)) * step + (width - 1) / 2
    flat = clipped - np.interp(np.arange(len(series)), centres, levels)
    return flat - np.mean(flat)


def _base_lag(correlation: Array, count: int) -> float:
    """Return the lag, in samples, after which the series first repeats.

    The series must also repeat after multiples of this lag, which is checked by its correlation.

    Raises:
        _RejectedError: the series does not repeat clearly, has too few samples per period, or stops
            repeating before its end.
    """
    lag, height = _shortest_repetition(correlation, count / MIN_PERIODS)
    _require(lag >= _MIN_SAMPLES_PER_PERIOD, "too few samples per period")
    for multiple, share in _MIN_LASTING.items():
        near = correlation[
            int(multiple * lag * 0.94 * UPSAMPLING) : int(multiple * lag * 1.06 * UPSAMPLING) + 1
        ]
        _require(len(near) > 0 and float(near.max()) >= share * height, "the repetition does not last")
    return lag


def _shortest_repetition(
    correlation: Array, max_lag: float, margin: float = _NOT_CLEARLY_WORSE
) -> tuple[float, float]:
    """Return the shortest lag, in samples, at which a series repeats, and the correlation there.

    Args:
        correlation: autocorrelation of the series.
        max_lag: maximum lag in samples.
        margin: minimum difference of the correlation at the best lag from the correlation at shorter lags.

    Raises:
        _RejectedError: the series does not repeat, or a shorter lag is nearly as likely.
    """
    middle = correlation[1:-1]
    peaks = np.flatnonzero((middle >= correlation[:-2]) & (middle > correlation[2:])) + 1
    below = np.flatnonzero(correlation < _MIN_CORRELATION)
    _require(len(below) > 0, "no repetition")
    peaks = peaks[(peaks > below[0]) & (peaks <= max_lag * UPSAMPLING)]
    _require(len(peaks) > 0, "no repetition")
    heights = correlation[peaks]
    best = float(heights.max())
    _require(best >= _MIN_CORRELATION, "no clear repetition")
    chosen = int(np.flatnonzero(heights >= best - _CLEARLY_BETTER)[0])
    lag = int(peaks[chosen])
    _require(not np.any(heights[:chosen] > best - margin), "a shorter period is nearly as likely")
    _require(heights[chosen] - float(correlation[:lag].min()) >= _MIN_CONTRAST, "no clear repetition")
    return lag / UPSAMPLING, float(heights[chosen])


def _is_same_at_both_ends(even: Array, lag: float) -> bool:
    """Return whether the start and the end of the series have the same period as the whole series.

    The shortest period of the first third and of the last third is compared with `lag`, the period
    of the whole series. If the series has few periods, halves are used instead of thirds.
    """
    length = len(even) // (3 if len(even) >= _MIN_PERIODS_FOR_THIRDS * lag else 2)
    for part in (even[:length], even[-length:]):
        try:
            correlation = checks.autocorrelation(part - np.mean(part))
            found, _ = _shortest_repetition(correlation, 1.1 * lag, _NOT_CLEARLY_WORSE_IN_PARTS)
        except _RejectedError:
            return False
        if abs(found - lag) > max(_MAX_DIFFERENCE * lag, 1 / UPSAMPLING):
            return False
    return True
