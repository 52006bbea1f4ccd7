"""Verdicts on a deployed change: whether targets are reached and limits are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.study.effects.effect_periods import EffectPeriods
from slurm_energy.study.effects.effects import (
    LEVEL,
    EffectEstimate,
    difference_effect,
    switchback_effect,
)
from slurm_energy.study.effects.period_series import PeriodSeries
from slurm_energy.study.goals.indicators import Direction
from slurm_energy.study.goals.objective import StudyLimit, StudyTarget

_ALARM_DAYS: Final = 3
"""Consecutive days beyond a limit and beyond the whole range of the baseline that prove a broken limit."""
_MIN_TREATED: Final = 4
"""Treated days from which an interval may declare a limit broken."""
_MIN_UNITS: Final = 2
"""Treated drawn periods from which an interval may declare a limit broken.

The interval of a single period assumes that its deviation is that of the periods of the baseline.
"""


class TargetVerdict(StrEnum):
    """Verdict on a target of a study: whether the measured effect reaches the target."""

    REACHED = "reached"
    PARTLY = "effect below target"
    NO_EFFECT = "no effect"
    OPPOSITE = "opposite effect"
    UNKNOWN = "not enough data"


class LimitVerdict(StrEnum):
    """Verdict that states whether a measured change keeps a limit of the study's objective."""

    KEPT = "kept"
    AT_RISK = "at risk"
    BROKEN = "broken"
    UNKNOWN = "not enough data"


@dataclass(frozen=True, slots=True)
class TargetResult:
    """Result of a validation for one target.

    Attributes:
        target: change of a KPI that the objective wants.
        verdict: whether the target is reached.
        estimate: estimated effect; None means not enough data.
        is_certain: whether the whole confidence interval reaches the target.
        baseline: mean of the KPI over the days of the baseline; NaN means unknown.
    """

    target: StudyTarget
    verdict: TargetVerdict
    estimate: EffectEstimate | None
    is_certain: bool
    baseline: float


@dataclass(frozen=True, slots=True)
class LimitResult:
    """Result of the validation of a deployment for one limit of the study.

    A limit is a bound that a key performance indicator (KPI) must not cross.

    Attributes:
        limit: bounds of a KPI from the objective.
        account: Slurm account to which the limit applies; an empty value means all jobs.
        verdict: whether the limit is kept.
        reason: reason of the verdict, for people.
        baseline: mean of the KPI over the days of the baseline; NaN means unknown.
        level: value of the KPI while the deployed change is in force; NaN means unknown.
        level_low, level_high: confidence interval of `level`; NaN means unknown.
        minimum, maximum: bounds of the permitted values.
        estimate: estimated effect; None means not enough data.
    """

    limit: StudyLimit
    account: str
    verdict: LimitVerdict
    reason: str
    baseline: float
    level: float
    level_low: float
    level_high: float
    minimum: float
    maximum: float
    estimate: EffectEstimate | None


def estimate_effect(
    periods: EffectPeriods, kpi: str, account: str = "", seed: int = 0, level: float = LEVEL
) -> EffectEstimate | None:
    """Estimate the effect of a deployment on a key performance indicator (KPI).

    The design of the deployment determines the method. If the treatment was switched on and off on random
    days, the effect is estimated from these days, otherwise from the difference to control jobs. Return None
    if there are too few periods.
    """
    series = periods.series(kpi, account)
    if series.block is not None:
        return switchback_effect(series, seed, level)
    return difference_effect(series, periods.control_series(kpi, account), level)


def judge_target(
    periods: EffectPeriods, target: StudyTarget, seed: int = 0, level: float = LEVEL
) -> TargetResult:
    """Return whether a target of a study is reached, together with the estimated effect.

    A target is a wanted change of a key performance indicator (KPI).
    """
    estimate = estimate_effect(periods, target.kpi, seed=seed, level=level)
    baseline = _baseline_mean(periods.series(target.kpi))
    if estimate is None:
        return TargetResult(target, TargetVerdict.UNKNOWN, None, False, baseline)
    wanted = target.change_percent / 100.0
    scale = 1.0 if estimate.is_relative else 1.0 / abs(baseline) if baseline else float("nan")
    sign = 1.0 if target.indicator.better is Direction.LOWER else -1.0
    bounds = sorted((sign * estimate.low * scale, sign * estimate.high * scale))
    change = sign * estimate.change * scale
    is_certain = bounds[1] <= sign * wanted
    if not estimate.excludes_zero:
        verdict = TargetVerdict.NO_EFFECT
    elif change > 0.0:
        verdict = TargetVerdict.OPPOSITE
    else:
        verdict = TargetVerdict.REACHED if change <= sign * wanted else TargetVerdict.PARTLY
    return TargetResult(target, verdict, estimate, is_certain, baseline)


def judge_limit(
    periods: EffectPeriods, limit: StudyLimit, seed: int = 0, level: float = LEVEL
) -> list[LimitResult]:
    """Return the verdict whether a KPI keeps a limit of the study.

    If the limit applies per Slurm account, return one verdict per account.
    """
    accounts = periods.accounts() if limit.per == "account" else [""]
    return [_judge_limit(periods, limit, account, seed, level) for account in accounts]


def _judge_limit(
    periods: EffectPeriods, limit: StudyLimit, account: str, seed: int, level: float
) -> LimitResult:
    series = periods.series(limit.kpi, account)
    own = series.value[~series.is_experiment & np.isfinite(series.value)]
    baseline = float(own.mean()) if len(own) else float("nan")
    deviation = float(own.std(ddof=1)) if len(own) > 1 else float("nan")
    low, high = limit.bounds(baseline, deviation)
    estimate = estimate_effect(periods, limit.kpi, account, seed, level)
    levels = _levels(estimate, baseline)
    verdict, reason = _interval_verdict(levels, estimate, low, high)
    if alarm := _alarm(series, low, high, own):
        verdict, reason = LimitVerdict.BROKEN, alarm
    return LimitResult(limit, account, verdict, reason, baseline, *levels, low, high, estimate)


def _levels(estimate: EffectEstimate | None, baseline: float) -> tuple[float, float, float]:
    """Return the expected value of a KPI after the change, then its lower and upper bound.

    The KPI is a key figure of the cluster. All three values are in the unit of the KPI.
    """
    if estimate is None:
        return (float("nan"),) * 3
    changes = estimate.change, estimate.low, estimate.high
    if estimate.is_relative:
        level, low, high = (baseline * (1.0 + change) for change in changes)
    else:
        level, low, high = (baseline + change for change in changes)
    return level, low, high


def _interval_verdict(
    levels: tuple[float, float, float], estimate: EffectEstimate | None, low: float, high: float
) -> tuple[LimitVerdict, str]:
    level, level_low, level_high = levels
    if estimate is None or level != level:
        return LimitVerdict.UNKNOWN, "too few days"
    is_enough = estimate.treated_periods >= _MIN_TREATED and estimate.treated_units >= _MIN_UNITS
    if level_low > high or level_high < low:
        if is_enough:
            return LimitVerdict.BROKEN, "the whole interval is beyond the limit"
        return LimitVerdict.AT_RISK, "the whole interval is beyond the limit, but too few periods are treated"
    if level > high or level < low:
        return LimitVerdict.AT_RISK, "the estimate is beyond the limit, its interval is not"
    return LimitVerdict.KEPT, "the estimate is within the limit"


def _alarm(series: PeriodSeries, low: float, high: float, baseline: Sequence[float] | np.ndarray) -> str:
    """Return the reason for an alarm if single days prove a broken limit, else an empty text.

    The limit is a bound of a study that a KPI must not cross. It is proved to be broken if, on several
    consecutive days, the values are beyond the limit and also far beyond all values of the baseline (see
    `_beyond`). This margin is wide, because waiting times of neighbouring days are correlated.

    Consecutive days are counted in two ways, and each way can cause an alarm. The first way counts all days
    from the first treated day on, because the damage of a policy outlasts the policy. The second way counts
    only the treated days of a switchback, a study in which the change is in force on randomly drawn days.
    """
    if len(baseline) < 2 or not series.is_treated.any():
        return ""
    middle, top, bottom = float(np.median(baseline)), float(np.max(baseline)), float(np.min(baseline))
    ceiling, floor = max(high, _beyond(top, middle)), min(low, _beyond(bottom, middle))
    first = int(np.argmax(series.is_treated))
    for values in (series.value[first:], series.value[series.is_treated]):
        is_beyond = ((values > ceiling) & (high < np.inf)) | ((values < floor) & (low > -np.inf))
        if _longest_run(is_beyond) >= _ALARM_DAYS:
            return (
                f"on {_ALARM_DAYS} consecutive days beyond the limit and far beyond all days of the baseline"
            )
    return ""


def _beyond(extreme: float, middle: float) -> float:
    """Return a bound somewhat beyond the highest (or lowest) value of a KPI in the baseline.

    The bound is half as far from the extreme value as the extreme value is from the median. If the
    extreme value and the median are positive, distance means a ratio: the bound is `extreme *
    sqrt(extreme / middle)`. The reason is that the distribution of waiting times has a heavy tail.
    Otherwise distance means a difference.

    Args:
        extreme: highest or lowest value in the baseline.
        middle: median of the baseline.
    """
    if extreme > 0.0 and middle > 0.0:
        return extreme * math.sqrt(extreme / middle)
    return extreme + 0.5 * (extreme - middle)


def _longest_run(flags: NDArray[np.bool_]) -> int:
    """Return the length of the longest run of true values."""
    longest = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        longest = max(longest, run)
    return longest


def _baseline_mean(series: PeriodSeries) -> float:
    own = series.value[~series.is_experiment & np.isfinite(series.value)]
    return float(own.mean()) if len(own) else float("nan")
