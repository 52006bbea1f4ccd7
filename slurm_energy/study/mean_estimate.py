"""Means of KPI values of days with weekly pattern, confidence intervals, and detectable effects. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_energy.study.jobs_table import Floats
from slurm_energy.study.kpis import DailyKpis
from slurm_energy.study.student_t import student_quantile

MIN_DAYS: Final = 14
"""Minimum number of days: two of each day of the week, without which the weekly pattern is unknown."""
_MAX_DAYS: Final = 3650
_MAX_CORRELATION: Final = 0.9


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """Mean of a KPI over a week, estimated from the days of a period.

    Attributes:
        days: number of days with a known value.
        mean: mean over the week: of the means of the days of the week.
        low, high: confidence interval of the mean; NaN: too few days.
        deviation: standard deviation of the days around the weekly pattern; NaN: too few days.
        correlation: correlation of neighbouring days around the weekly pattern, not below 0.
        weekdays: mean of each day of the week, Monday first, shape (7,); NaN: no such day.
    """

    days: int
    mean: float
    low: float
    high: float
    deviation: float
    correlation: float
    weekdays: Floats

    @property
    def relative_deviation(self) -> float:
        """Standard deviation of days relative to the mean; NaN: unknown."""
        return self.deviation / abs(self.mean) if self.mean else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object; unknown values are NaN."""
        return {
            "days": self.days,
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "deviation": self.deviation,
            "correlation": self.correlation,
            "weekdays": self.weekdays.tolist(),
        }


def mean_estimate(
    daily: DailyKpis, kpi: str, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> MeanEstimate:
    """Estimate the mean of a KPI from the used days of a period.

    The interval is from a bootstrap that draws days within each day of the week. Its width is increased for
    the few days per stratum, for the correlation of neighbouring days, and by Student's t.

    Args:
        daily: KPI values of days.
        kpi: name of the KPI.
        confidence: confidence of the interval.
        resamples: number of bootstrap samples.
        seed: seed of the random numbers.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, sections 6 and 8.
    """
    values = daily.values[kpi]
    kept = daily.days.used & ~np.isnan(values)
    rows = np.flatnonzero(kept)
    values, weekday = values[kept], daily.days.weekdays[kept]
    means = np.array([values[weekday == d].mean() if np.any(weekday == d) else math.nan for d in range(7)])
    if not len(values):
        return MeanEstimate(0, math.nan, math.nan, math.nan, math.nan, 0.0, means)
    strata = np.unique(weekday)
    mean = float(np.nanmean(means))
    residuals = values - means[weekday]
    freedom = len(values) - len(strata)
    if freedom < 1:
        return MeanEstimate(len(values), mean, math.nan, math.nan, math.nan, 0.0, means)
    deviation = math.sqrt(float(residuals @ residuals) / freedom)
    correlation = _neighbour_correlation(residuals, rows, deviation)
    error = _bootstrap_error(residuals, weekday, strata, resamples, seed)
    error *= math.sqrt(len(values) / freedom) * math.sqrt((1 + correlation) / (1 - correlation))
    margin = student_quantile(0.5 + confidence / 2, freedom) * error
    return MeanEstimate(len(values), mean, mean - margin, mean + margin, deviation, correlation, means)


def _neighbour_correlation(residuals: Floats, rows: np.ndarray, deviation: float) -> float:
    """Return the correlation of the residuals of neighbouring days, from 0 to 0.9.

    The estimate from few pairs is biased downwards by about 1/n; it is corrected.
    """
    pairs = np.flatnonzero(np.diff(rows) == 1)
    if len(pairs) < 5 or deviation == 0:
        return 0.0
    raw = float(np.mean(residuals[pairs] * residuals[pairs + 1])) / deviation**2
    return min(_MAX_CORRELATION, max(0.0, raw + 1.0 / len(pairs)))


def _bootstrap_error(
    residuals: Floats, weekday: np.ndarray, strata: np.ndarray, resamples: int, seed: int
) -> float:
    """Return the standard error of the mean of the means of the strata."""
    random = np.random.default_rng(seed)
    totals = np.zeros(resamples)
    for day in strata:
        # A stratum of one day has no spread of its own: it borrows that of all days.
        own = residuals[weekday == day]
        pool = own if len(own) > 1 else residuals
        drawn = random.choice(pool, size=(resamples, len(own)))
        totals += drawn.mean(axis=1)
    return float(np.std(totals / len(strata), ddof=1))


@dataclass(frozen=True, slots=True)
class PowerAnalysis:
    """Whether the data of a baseline suffice to find a wanted effect.

    Attributes:
        wanted: wanted relative change, as a positive number.
        detectable: smallest relative change that a comparison with as many days afterwards finds.
        detectable_switchback: smallest relative change that an experiment of alternating days of the same
            length finds.
        days: days of the baseline.
        needed_days: days that baseline and comparison need each for the wanted effect; None: more than ten
            years, or unknown.
        needed_switchback_days: days that an experiment of alternating days needs; None likewise.
    """

    wanted: float
    detectable: float
    detectable_switchback: float
    days: int
    needed_days: int | None
    needed_switchback_days: int | None

    @property
    def suffices(self) -> bool:
        """Whether the baseline is long enough."""
        return self.needed_days is not None and self.days >= self.needed_days

    @property
    def missing_days(self) -> int | None:
        """Number of further days that the baseline needs; None: it cannot become long enough."""
        return None if self.needed_days is None else max(0, self.needed_days - self.days)

    def to_json(self) -> dict[str, Any]:
        """Return the analysis as a JSON object."""
        return {
            "wanted": self.wanted,
            "detectable": self.detectable,
            "detectable_switchback": self.detectable_switchback,
            "days": self.days,
            "needed_days": self.needed_days,
            "needed_switchback_days": self.needed_switchback_days,
            "suffices": self.suffices,
            "missing_days": self.missing_days,
        }


def power_analysis(
    estimate: MeanEstimate, wanted: float, confidence: float = 0.95, power: float = 0.8
) -> PowerAnalysis:
    """Return which effects can be found with a baseline, and how many days the wanted effect needs.

    Baseline and comparison have n days each. The difference of their means has the variance 2 s^2 / n, with
    s^2 increased for correlated neighbours; that of n alternating days 4 s^2 / n.

    Args:
        estimate: mean of the KPI.
        wanted: wanted relative change, positive.
        confidence: confidence of the later interval.
        power: probability with which the effect is to be found.

    Source: Cohen 1988, Statistical Power Analysis, section 2 (with Student's t for few days).
    """
    spread = estimate.relative_deviation
    correlation = estimate.correlation
    inflated = spread * math.sqrt((1 + correlation) / (1 - correlation))

    def detectable(days: int, deviation: float, groups: float) -> float:
        freedom = max(1.0, groups * days - 8)  # a mean per day of the week, and the effect
        quantiles = student_quantile(0.5 + confidence / 2, freedom) + student_quantile(power, freedom)
        return quantiles * deviation * math.sqrt(2 / days)

    def needed(deviation: float, groups: float, scale: float) -> int | None:
        if not math.isfinite(deviation):
            return None
        low, high = MIN_DAYS, _MAX_DAYS + 1
        while low < high:  # more days detect smaller changes
            middle = (low + high) // 2
            if detectable(middle, deviation * scale, groups) <= wanted:
                high = middle
            else:
                low = middle + 1
        return low if low <= _MAX_DAYS else None

    days = estimate.days
    root = math.sqrt(2)  # alternating days share the length between two arms
    return PowerAnalysis(
        wanted,
        detectable(days, inflated, 2) if days else math.nan,
        detectable(days, spread * root, 1) if days else math.nan,
        days,
        needed(inflated, 2, 1),
        needed(spread, 1, root),
    )
