"""Checks whether a period found in the power of a program is really the period of its steps.

A candidate is refused if it is not stable, if a simpler explanation exists, if it belongs to another loop,
or if it is an alias. Series are numpy arrays without trend and with mean 0. Lags are lengths in samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

UPSAMPLING: Final = 4
"""Values of the autocorrelation per sampling interval."""
_POINTS_PER_PERIOD: Final = 40
_SEARCH: Final = 6
_MIN_SEGMENT_PERIODS, _MAX_SEGMENT_PERIODS = 3, 6
_SEGMENT_SAMPLES: Final = 30.0
_TOLERANCE: Final = 0.05
_MIN_GOOD: Final = 0.8
_MAX_DRIFT: Final = 0.03
_MIN_PERIODS_BETWEEN_BREAKS: Final = 12
_UNCLEAR: Final = 0.6
_MIN_ERROR: Final = 0.002
_PART_PERIODS: Final = 8
_MAX_FOLDS: Final = 30
_MIN_ROUGHER: Final = {4: 1.6, 8: 1.4}
_MAX_ROUGHNESS: Final = 0.75
_LOPSIDED: Final = 1.0
_MIN_LOPSIDED_PERIODS: Final = 20
_LONG_PERIOD: Final = 25.0
_MAX_UNEXPLAINED: Final = 0.3
_MAX_FAST: Final = 0.3
_FAST_LOOPS: Final = 12
_FAST_CORRELATION: Final = 0.3
_NEGLIGIBLE: Final = 0.06
_MAX_LINE: Final = 0.3
_MAX_REPEATED: Final = 0.6
"""Correlation above which the remainder of a series without the candidate period repeats itself."""
_HARMONICS: Final = 12
_MIN_FUNDAMENTAL: Final = 0.008
"""Minimum share of the fundamental in the power of a true period. The smallest share among 1000 periods that
were found correctly is 0.015."""
_CYCLE_POINTS: Final = 20
_MAX_CYCLE_PERIODS: Final = 14
"""Maximum number of micro-batches in a step, with an optimizer that takes as long as several of them."""
_MIN_CYCLE_SHARE, _MIN_CYCLE_CORRELATION = 0.04, 0.8
_ALIAS: Final = 0.8

Array = Any


def autocorrelation(even: Array) -> Array:
    """Return the normalised autocorrelation of an evenly sampled signal.

    The lags are the multiples of a quarter of the sampling interval.
    """
    count = len(even)
    size = 1 << (2 * count - 1).bit_length()
    power = np.abs(np.fft.rfft(even, size)) ** 2
    products = np.fft.irfft(power, size * UPSAMPLING)[: count * UPSAMPLING // 2] * UPSAMPLING
    squares = np.concatenate(([0.0], np.cumsum(even * even)))
    lags = np.arange(count // 2 + 1)
    energy = np.sqrt(squares[count - lags] * (squares[count] - squares[lags]))
    fine = np.interp(np.arange(len(products)) / UPSAMPLING, lags, energy)
    return products / np.maximum(fine, 1e-12)


@dataclass(frozen=True, slots=True)
class LocalPeriods:
    """Periods that were measured separately in overlapping parts of a power series.

    They serve to check a candidate for the period of the whole series. Each part contains a few periods.

    Attributes:
        ratios: measured period of each part divided by the candidate; 0 where the series does not repeat.
        clear: whether each part repeats with about the median period of all parts.
        periods: number of periods over which the period of a part is averaged.
    """

    ratios: Array
    clear: Array
    periods: int

    @property
    def median(self) -> float:
        """Median of the locally measured periods, divided by the candidate period of the whole series.

        A local period is the period in one of several overlapping parts of the series.
        """
        return float(np.median(self.ratios))

    @property
    def is_stable(self) -> bool:
        """Whether the power repeats with nearly the same period in most parts of the series.

        In these parts, the period is about the median period of all parts.
        """
        return self.median > 0 and float(np.mean(self.clear)) >= _MIN_GOOD

    @property
    def is_drifting(self) -> bool:
        """Whether the period at the beginning of the series differs from the period at its end."""
        third = max(1, len(self.ratios) // 3)
        first, last = np.median(self.ratios[:third]), np.median(self.ratios[-third:])
        return abs(float(first - last)) > _MAX_DRIFT * self.median

    @property
    def is_interrupted_often(self) -> bool:
        """Whether the period of the power series is interrupted often.

        A longer period is then likely, for example in training with micro-batches.
        """
        breaks = int(np.sum(self.clear[:-1] & ~self.clear[1:]))
        return breaks > 1 and float(np.sum(self.clear)) < _MIN_PERIODS_BETWEEN_BREAKS * breaks

    @property
    def jitter(self) -> float:
        """Relative standard deviation of the lengths of the single periods of a power series."""
        return self._spread * math.sqrt(self.periods)

    @property
    def relative_error(self) -> float:
        """Relative standard error of the median length of the period.

        The median is taken over the lengths that were measured in overlapping parts of the series.
        """
        independent = max(1.0, len(self.ratios) / self.periods)
        return math.hypot(1.25 * self._spread / math.sqrt(independent), _MIN_ERROR)

    @property
    def _spread(self) -> float:
        return float(np.std(self.ratios[self.clear])) / self.median


def local_periods(even: Array, lag: float) -> LocalPeriods | None:
    """Measure the period of a series separately in many overlapping parts of the series.

    The series is evenly sampled. The parts begin one candidate period (`lag`) apart, and each contains a
    few periods. Return None if the series is too short.
    """
    points = _POINTS_PER_PERIOD
    fine = np.interp(np.arange(0, len(even) - 1, lag / points), np.arange(len(even)), even)
    wanted = math.ceil(_SEGMENT_SAMPLES / lag)
    periods = min(_MAX_SEGMENT_PERIODS, max(_MIN_SEGMENT_PERIODS, wanted))
    width = periods * points
    last = len(fine) - width - points - _SEARCH
    if last <= points:
        return None
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
    bend = np.minimum(left - 2 * peak + right, -1e-9)
    ratios = (shifts[top] + np.clip(0.5 * (left - right) / bend, -1, 1)) / points
    ratios[peak < 0.3] = 0.0
    clear = (np.abs(ratios / max(float(np.median(ratios)), 1e-9) - 1) <= _TOLERANCE) & (
        peak >= _UNCLEAR * float(np.median(peak))
    )
    return LocalPeriods(ratios, clear, periods)


def has_simpler_fold(positions: Array, flat: Array, lag: float) -> bool:
    """Return whether a shorter period than the candidate period fits a series equally well.

    The candidate period is called lag. The shorter periods are 1/2, 1/3 and further fractions of the lag.
    If one of them fits equally well, the lag is only a multiple of the true period.

    The series is folded at a period: the samples are ordered by their phase in this period. At the true
    period, neighbours in this order have similar values, so the ordered series is smooth. At a multiple
    of the true period, the ordered series contains the same wave several times and is less smooth. This
    holds even if the true period is shorter than the sampling interval. A shorter period fits equally
    well if folding at it gives a series that is as smooth as folding at the lag.

    Args:
        positions: sample times in units of the mean interval.
        flat: the series at these times.
        lag: candidate period in samples.
    """
    folds = np.arange(1, min(_MAX_FOLDS, int(lag / 2) + 2))
    turns = np.outer(folds, positions / lag) % 1.0
    for periods, rougher in _MIN_ROUGHER.items():
        roughness = _roughness(flat, turns, np.floor(positions / (periods * lag)))
        if np.any(roughness[1:] < rougher * roughness[0]):
            return True
        if periods < _PART_PERIODS and roughness[0] > _MAX_ROUGHNESS:
            return True
    return False


def _roughness(flat: Array, turns: Array, part: Array) -> Array:
    """Return the roughness of a series for each candidate period; lower means a better fit.

    The samples are sorted by their phase in the candidate period. The roughness is the mean squared
    difference of samples with neighbouring phases, divided by the variance of the series. The series is
    divided into parts of a few periods, because the phase is exact only over a few periods. Neighbours from
    different parts do not count.

    Args:
        flat: the samples of the series.
        turns: phase of each sample, with one row per candidate period.
        part: part of the series to which each sample belongs.
    """
    order = np.argsort(part + turns, axis=1)
    steps = np.diff(flat[order], axis=1)
    same = np.diff(part[order], axis=1) == 0
    return np.sum(steps * steps * same, axis=1) / (np.maximum(1, np.sum(same, axis=1)) * np.var(flat))


def may_be_pauses(even: Array, lag: float) -> bool:
    """Return whether the period found in a series may come from regular short pauses of the program.

    The pauses may be checkpoints, for example. The steps between the pauses may be too short to be
    visible in the series. The result is true if three conditions hold: the period is long, the series is
    at one level most of the time, and the series has too few repetitions of the period to exclude pauses.

    Args:
        even: the series, at equal intervals.
        lag: length of the period in intervals of the series.
    """
    skew = abs(float(np.mean(even**3))) / float(np.std(even)) ** 3
    return lag >= _LONG_PERIOD and skew > _LOPSIDED and len(even) < _MIN_LOPSIDED_PERIODS * lag


def has_other_period(even: Array, lag: float) -> bool:
    """Return whether the series has a second period besides the candidate period `lag`.

    The part of the series that the candidate period does not explain has a period if a single
    frequency contains much of its power. For a long candidate period, the result is also True in
    two further cases: much power remains unexplained, or much power is at high frequencies. The
    program may then have a loop with too few samples per step. The candidate period may be only a
    longer cycle, for example between checkpoints.
    """
    rest = _without_period(even, lag)
    unexplained = float(np.var(rest)) / float(np.var(even))
    if lag >= _LONG_PERIOD and (unexplained > _MAX_UNEXPLAINED or _fast_share(even) > _MAX_FAST):
        return True
    if unexplained < _NEGLIGIBLE:
        return False
    if _repeats(rest, 2.2 * lag):
        return True
    power = np.abs(np.fft.rfft((rest - np.mean(rest)) * np.hanning(len(rest)))) ** 2
    power[: int(1.5 * len(rest) / lag)] = 0.0
    top = int(np.argmax(power))
    return float(np.sum(power[max(0, top - 2) : top + 3])) > _MAX_LINE * float(np.sum(power))


def _repeats(rest: Array, max_lag: float) -> bool:
    """Return whether a series repeats after at most `max_lag` samples.

    The decision uses the autocorrelation of the series.
    """
    correlation = autocorrelation(rest - np.mean(rest))
    start = int(np.argmax(correlation < 0))
    part = correlation[start : int(max_lag * UPSAMPLING) + 1]
    return start > 0 and len(part) > 0 and float(part.max()) > _MAX_REPEATED


def has_fundamental(even: Array, lag: float) -> bool:
    """Return whether the frequency 1/`lag` itself contains power, and not only its multiples.

    Two loops with the periods `lag`/2 and `lag`/3 repeat together after `lag`. Their sum has power at
    multiples of 2/`lag` and 3/`lag` only.
    """
    index = np.arange(len(even))
    part = np.floor(index / (_PART_PERIODS * lag)).astype(int)
    orders = range(1, int(min(_HARMONICS, lag / 2)) + 1)
    power = [_part_power(part, even * np.exp(-2j * np.pi * order * index / lag)) for order in orders]
    return power[0] >= _MIN_FUNDAMENTAL * sum(power)


def is_part_of_cycle(even: Array, lag: float) -> bool:
    """Return whether the candidate period of a power series is only a part of a longer step.

    An example is a micro-batch, of which a step has several. To decide this, the function computes the mean
    and the amplitude of each successive period. If one of them repeats after several periods, the candidate
    is a part of a longer step. A repetition after more than `_MAX_CYCLE_PERIODS` periods does not count,
    because it may come from checkpoints.
    """
    points = _CYCLE_POINTS
    fine = np.interp(np.arange(0, len(even) - 1, lag / points), np.arange(len(even)), even)
    windows = np.lib.stride_tricks.sliding_window_view(fine, points)
    lags = np.arange(2 * points, min(_MAX_CYCLE_PERIODS * points, len(windows) // 3), 2)
    for values in (windows.mean(axis=1), windows.std(axis=1)):
        if len(lags) < 3 or float(np.var(values)) < _MIN_CYCLE_SHARE * float(np.var(fine)):
            continue
        flat = values - np.mean(values)
        heights = np.array([_correlation(flat[:-shift], flat[shift:]) for shift in lags])
        top = int(np.argmax(heights))
        if top > 0 and heights[top] > _MIN_CYCLE_CORRELATION:
            return True
    return False


def _correlation(first: Array, second: Array) -> float:
    """Return the correlation of two series with mean 0."""
    return float(first @ second) / math.sqrt(float(first @ first) * float(second @ second) + 1e-12)


def contains_fast_loop(even: Array, lag: float) -> bool:
    """Return whether a series that repeats with the period `lag` also repeats much faster.

    The faster period is at most a twelfth of `lag`. If there is one, `lag` is a cycle of many training
    steps, for example from one checkpoint to the next. A single step contains no such period, because it
    has fewer than twelve micro-batches.
    """
    if lag < _LONG_PERIOD:
        return False
    width = max(8, int(lag / 6))
    means = np.convolve(even, np.ones(width) / width, mode="same")
    fast = (even - means)[width:-width]
    bound = 2.5 * float(np.median(np.abs(fast))) + 1e-12
    correlation = autocorrelation(np.clip(fast, -bound, bound))
    start = int(np.argmax(correlation < 0))
    part = correlation[start : int(lag / _FAST_LOOPS * UPSAMPLING) + 1]
    return start > 0 and len(part) > 0 and float(part.max()) > _FAST_CORRELATION


def _fast_share(even: Array) -> float:
    """Return the share of a series' variance that comes from periods of less than five samples."""
    power = np.abs(np.fft.rfft(even)) ** 2
    return float(np.sum(power[len(even) // 5 :])) / float(np.sum(power))


def _without_period(even: Array, lag: float) -> Array:
    """Remove a periodic part from an evenly sampled signal.

    The mean of two other samples is subtracted from each sample. One of the two is one period earlier and
    the other is one period later.
    """
    index = np.arange(len(even))
    before, after = np.interp(index - lag, index, even), np.interp(index + lag, index, even)
    rest = even - (before + after) / 2
    edge = math.ceil(lag)
    return rest[edge:-edge]


def is_alias(positions: Array, flat: Array, lag: float) -> bool:
    """Return whether a candidate period may be an artefact of the sampling (an alias).

    The candidate may be an alias if a frequency above the sampling rate explains the series about as well
    as the candidate. The samples are irregular in time.

    Args:
        positions: sample times in units of the mean interval.
        flat: one value per sample time. A value is either the value of the series at this time, or its
            mean since the previous sample time.
        lag: candidate period in samples.
    """
    middle = np.concatenate((positions[:1], (positions[1:] + positions[:-1]) / 2))
    own = max(_power(at, flat, 1 / lag, lag) for at in (positions, middle))
    aliases = (order + sign / lag for order in (1, 2, 3) for sign in (-1, 1))
    return any(
        _power(at, flat, frequency, lag) > _ALIAS * own for frequency in aliases for at in (positions, middle)
    )


def _power(positions: Array, flat: Array, frequency: float, lag: float) -> float:
    """Return how much power a sinusoid of the given frequency has in the series.

    The series is divided into parts of eight periods, and the power is summed over the parts.
    """
    part = np.floor(positions / (_PART_PERIODS * lag)).astype(int)
    best = 0.0
    for detune in (-0.5, 0.0, 0.5):
        turns = (frequency + detune / (_PART_PERIODS * lag)) * positions
        best = max(best, _part_power(part, flat * np.exp(-2j * np.pi * turns)))
    return best


def _part_power(part: Array, waves: Array) -> float:
    """Return the power that a sinusoid has in a series of values.

    The series is divided into parts. For each value, `waves` contains a complex amplitude, and `part`
    contains the number of its part. The function sums the amplitudes within each part. The result is the
    sum of the squared magnitudes of these sums.
    """
    return float(np.sum(np.bincount(part, waves.real) ** 2 + np.bincount(part, waves.imag) ** 2))
