"""Means of key performance indicators (KPIs) over days that follow a weekly pattern.

The module also computes confidence intervals of the means. All functions are pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_energy.study.data.jobs_table import Floats
from slurm_energy.study.data.kpis import DailyKpis
from slurm_energy.study.statistics.student_t import student_quantile

MIN_DAYS: Final = 14
"""Minimum number of days: two of each day of the week, without which the weekly pattern is unknown."""
_MAX_CORRELATION: Final = 0.9


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """Mean of a KPI over a week, estimated from the days of a period.

    Attributes:
        days: number of days with a known value.
        mean: mean of the means of the seven weekdays.
        low, high: confidence interval of the mean; NaN means that there are too few days.
        deviation: standard deviation of the daily values around the weekly pattern; NaN means that there are
            too few days.
        correlation: correlation of neighbouring days around the weekly pattern, not below 0.
        weekdays: mean of each weekday, Monday first, shape (7,); NaN means that the period does not contain
            this weekday.
    """

    days: int
    mean: float
    low: float
    high: float
    deviation: float
    correlation: float
    weekdays: Floats

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

    The confidence interval comes from a bootstrap that draws days separately for each weekday (stratum). The
    interval is widened to account for few days per stratum and for the correlation of neighbouring days, and
    by the use of Student's t.

    Args:
        daily: KPI values of the days.
        kpi: name of the KPI.
        confidence: confidence level of the interval.
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
    """Return the correlation between the residuals of neighbouring days, from 0 to 0.9.

    The estimate from n pairs is too low by about 1/n. This bias is corrected.
    """
    pairs = np.flatnonzero(np.diff(rows) == 1)
    if len(pairs) < 5 or deviation == 0:
        return 0.0
    raw = float(np.mean(residuals[pairs] * residuals[pairs + 1])) / deviation**2
    return min(_MAX_CORRELATION, max(0.0, raw + 1.0 / len(pairs)))


def _bootstrap_error(
    residuals: Floats, weekday: np.ndarray, strata: np.ndarray, resamples: int, seed: int
) -> float:
    """Return the standard error of a mean over weekdays, estimated by bootstrap.

    Each weekday is one stratum. In each resample, the days of every weekday are drawn with replacement, and
    the mean of the weekdays' means is computed.
    """
    random = np.random.default_rng(seed)
    totals = np.zeros(resamples)
    for day in strata:
        # A stratum of one day has no spread: the spread of all days replaces it.
        own = residuals[weekday == day]
        pool = own if len(own) > 1 else residuals
        drawn = random.choice(pool, size=(resamples, len(own)))
        totals += drawn.mean(axis=1)
    return float(np.std(totals / len(strata), ddof=1))
