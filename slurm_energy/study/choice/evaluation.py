"""Evaluation of alternatives (sets of energy measures) in a study by their forecasts.

The module compares forecasts with targets and limits, finds the Pareto front, and recommends an alternative.
All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from slurm_energy.study.choice.alternatives import StudyAlternative
from slurm_energy.study.goals.indicators import KPIS, Direction, Kpi
from slurm_energy.study.goals.objective import StudyLimit, StudyObjective, StudyTarget
from slurm_energy.study.modelling.forecast import ForecastChange

SIMPLER_WITHIN: Final = 0.005
"""Difference of the main target, as a share, up to which the alternative with fewer levers is preferred."""


class LimitForecast(StrEnum):
    """Forecast of whether an alternative (set of energy measures) keeps a limit of the study."""

    KEPT = "kept"
    AT_RISK = "at risk"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LimitOutlook:
    """Forecast whether an alternative (a considered set of energy measures) would keep a limit.

    The limit applies to a key performance indicator (KPI), for example a waiting time.

    Attributes:
        kpi: KPI to which the limit applies.
        account: Slurm account to which the limit applies; an empty value means all jobs.
        forecast: whether the alternative is expected to keep the limit.
        value: forecast value of the KPI; NaN means unknown.
        minimum, maximum: smallest and largest permitted value of the KPI.
    """

    kpi: str
    account: str
    forecast: LimitForecast
    value: float
    minimum: float
    maximum: float

    @property
    def text(self) -> str:
        """Sentence with the forecast value of the KPI, its limit, and whether the limit is kept."""
        kpi = KPIS[self.kpi]
        of = f" of account {self.account}" if self.account else ""
        bound = self.maximum if kpi.better is Direction.LOWER else self.minimum
        return f"{kpi.title}{of} {self.value:.4g} {kpi.unit}, limit {bound:.4g}: {self.forecast}"


@dataclass(frozen=True, slots=True)
class AlternativeForecast:
    """Forecast of the effects of an alternative plan of a study.

    Attributes:
        alternative: combination of means to save energy (levers) to which the forecast applies.
        changes: forecast change of each KPI. Unknown KPIs are missing.
        limits: for each limit of the study, the forecast of whether the limit will be kept.
        accounts, classes: cost or saving of each Slurm account and of each class of jobs, see
            `forecast.group_changes`.
        seeds: number of simulated periods.
    """

    alternative: StudyAlternative
    changes: Mapping[str, ForecastChange]
    limits: Sequence[LimitOutlook]
    accounts: Sequence[Mapping[str, Any]] = field(default=())
    classes: Sequence[Mapping[str, Any]] = field(default=())
    seeds: int = 1

    @property
    def is_permitted(self) -> bool:
        """Whether the forecast of an alternative (a set of energy measures) breaks no limit of the study.

        The mean of the forecast is compared with the limits.
        """
        return all(one.forecast is not LimitForecast.BROKEN for one in self.limits)

    @property
    def is_safe(self) -> bool:
        """Whether the whole forecast interval of each limited KPI is within the limit's bounds."""
        return all(one.forecast is LimitForecast.KEPT for one in self.limits)

    def improvement(self, kpi: Kpi) -> float:
        """Return the relative improvement of a KPI; NaN if the improvement is unknown."""
        change = self.changes.get(kpi.name)
        if change is None:
            return math.nan
        return -change.change if kpi.better is Direction.LOWER else change.change

    def certain_improvement(self, kpi: Kpi) -> float:
        """Return the lower bound of the confidence interval of a KPI's mean improvement; NaN if unknown."""
        change = self.changes.get(kpi.name)
        if change is None:
            return math.nan
        return -change.mean_high if kpi.better is Direction.LOWER else change.mean_low

    def reaches(self, target: StudyTarget) -> bool:
        """Return whether the mean of the forecast reaches a target."""
        return self.improvement(target.indicator) >= abs(target.change_percent) / 100


def limit_outlook(
    limit: StudyLimit, change: ForecastChange | None, deviation: float, account: str = ""
) -> LimitOutlook:
    """Return the forecast whether an alternative keeps a limit of the study's objective.

    The alternative is compared with the present site. Both are simulated with the twin (the simulator of the
    site). An error of the twin therefore affects both sides of the comparison.

    Args:
        limit: bounds of a KPI from the objective.
        change: forecast change of the limited KPI; None means unknown.
        deviation: standard deviation of the KPI over the days of the present site; NaN means unknown.
        account: account to which the limit applies; an empty value means all jobs.
    """
    if change is None or math.isnan(change.value):
        return LimitOutlook(limit.kpi, account, LimitForecast.UNKNOWN, math.nan, -math.inf, math.inf)
    low, high = limit.bounds(change.today, deviation)
    values = [change.value]
    if not math.isnan(change.low):
        values += [change.today * (1 + change.low), change.today * (1 + change.high)]
    beyond = [value < low or value > high for value in values]
    # An absolute bound that the present site breaks already is no fault of the alternative.
    is_worse = limit.indicator.better is Direction.LOWER and change.value > change.today
    is_worse |= limit.indicator.better is Direction.HIGHER and change.value < change.today
    if beyond[0] and is_worse:
        forecast = LimitForecast.BROKEN
    else:
        forecast = LimitForecast.AT_RISK if any(beyond) else LimitForecast.KEPT
    return LimitOutlook(limit.kpi, account, forecast, change.value, low, high)


def pareto_front(forecasts: Sequence[AlternativeForecast], kpis: Sequence[Kpi]) -> list[int]:
    """Return the indices of the study alternatives that no other alternative dominates.

    An alternative is a combination of energy-saving measures. A dominates B if the forecast means of A are
    worse in no KPI and better in at least one KPI. A KPI that is unknown for A or B does not count.

    Args:
        forecasts: forecasts of the alternatives to compare.
        kpis: the KPIs of targets and limits.
    """
    rows = [[one.improvement(kpi) for kpi in kpis] for one in forecasts]

    def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if not (math.isnan(x) or math.isnan(y))]
        return bool(pairs) and all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)

    return [number for number, row in enumerate(rows) if not any(dominates(other, row) for other in rows)]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Result of the study step `choose`: the recommended alternative (set of energy-saving measures).

    Attributes:
        name: name of the recommended alternative; an empty value means that no alternative is
            recommended.
        reasons: reasons of the recommendation, as sentences.
        reaches_target: whether the forecast of the alternative reaches the main target.
    """

    name: str
    reasons: tuple[str, ...]
    reaches_target: bool = False


def recommend(forecasts: Sequence[AlternativeForecast], objective: StudyObjective) -> Recommendation:
    """Return the alternative (set of energy measures) that the study recommends to deploy.

    Candidates are the alternatives that break no limit. If some alternatives keep every limit with certainty
    and reach the main target, only these alternatives are candidates. The candidate with the largest
    improvement of the main target is recommended. If two improvements differ by less than half a percentage
    point, the alternative with fewer measures (levers) is preferred.

    Args:
        forecasts: the alternatives. The present configuration of the site is not among them.
        objective: objective of the study, with targets and limits.
    """
    target = objective.targets[0]
    kpi, wanted = target.indicator, abs(target.change_percent) / 100
    permitted = [one for one in forecasts if one.is_permitted and one.certain_improvement(kpi) > 0]
    if not permitted:
        return Recommendation("", _why_none(forecasts, kpi))
    safe = [one for one in permitted if one.is_safe and one.reaches(target)]
    pool = safe or permitted
    best = max(one.improvement(kpi) for one in pool)
    near = [one for one in pool if one.improvement(kpi) >= best - SIMPLER_WITHIN]
    if any(one.reaches(target) for one in near):
        near = [one for one in near if one.reaches(target)]
    chosen = min(near, key=lambda one: (len(one.alternative.levers), -one.improvement(kpi)))
    change = chosen.changes[kpi.name]
    reasons = [
        f"{kpi.title}: {100 * change.change:+.1f} % on average ({100 * change.mean_low:+.1f} to "
        f"{100 * change.mean_high:+.1f} %), wanted {target.change_percent:+g} %",
        *(one.text for one in chosen.limits),
    ]
    reaches = chosen.reaches(target)
    if not reaches:
        reasons.append(
            f"no permitted alternative reaches the target of {100 * wanted:g} %: this one comes nearest"
        )
    if best > chosen.improvement(kpi):
        reasons.append("another alternative promises slightly more, but uses more levers")
    refused = [
        one for one in forecasts if not one.is_permitted and one.improvement(kpi) > chosen.improvement(kpi)
    ]
    for one in refused:
        broken = next(limit for limit in one.limits if limit.forecast is LimitForecast.BROKEN)
        reasons.append(f"not {one.alternative.name}: {broken.text}")
    return Recommendation(chosen.alternative.name, tuple(reasons), reaches)


def _why_none(forecasts: Sequence[AlternativeForecast], kpi: Kpi) -> tuple[str, ...]:
    reasons = []
    for one in forecasts:
        if not one.is_permitted:
            broken = next(limit for limit in one.limits if limit.forecast is LimitForecast.BROKEN)
            reasons.append(f"not {one.alternative.name}: {broken.text}")
        elif math.isnan(one.improvement(kpi)):
            reasons.append(f"not {one.alternative.name}: {kpi.title} is unknown")
        else:
            worse = -100 * one.certain_improvement(kpi)
            change = f"may worsen by {worse:.1f} % on average" if worse > 0 else "may not improve on average"
            reasons.append(f"not {one.alternative.name}: {kpi.title} {change}")
    return tuple(reasons) or ("there is no alternative",)
