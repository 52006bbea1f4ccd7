"""Effect of a deployment on a KPI, with a confidence interval.

The design is a switchback or a difference in differences.

Values are compared per period, usually a day. A KPI on a ratio scale is compared by logarithms, so that an
effect is a relative change. The comparison adjusts for the day of the week and the work of a period.
Intervals use Student's t distribution, because a study has few periods. If the assignment was drawn at
random, the interval is widened to the interval of the randomisation test. This test needs no assumption on
the distribution.

Sources: Bojinov, Simchi-Levi and Zhao, "Design and analysis of switchback experiments", Management Science 69
(2023), for the carry-over; Bertrand, Duflo and Mullainathan, Quarterly Journal of Economics 119 (2004), for
the serial correlation of differences in differences; Rosenbaum, "Observational Studies" (2002), section 2.4,
for the inversion of the randomisation test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from slurm_energy.study.effects.drawn_periods import has_long_periods, period_means
from slurm_energy.study.effects.period_series import PeriodSeries
from slurm_energy.study.statistics.least_squares import (
    CoefficientEstimate,
    Floats,
    coefficient,
    weekday_columns,
)

LEVEL = 0.95
"""Level of the confidence intervals."""
_DRAWS = 999
_MIN_ASSIGNMENTS = 100.0
"""Number of possible assignments from which the randomisation test can reject at 5 % with some resolution."""
_BISECTIONS = 24
_TREND_PERIODS = 42
"""Number of periods from which a linear trend is adjusted for."""


@dataclass(frozen=True, slots=True)
class EffectEstimate:
    """Effect of a change on a KPI.

    Attributes:
        method: `switchback`, `difference_in_differences` or `before_after`.
        change: estimated change, as a fraction of the untreated value if `is_relative`, else in the unit of
            the KPI.
        low, high: bounds of the confidence interval.
        level: confidence level of the interval.
        p_value: two-sided p-value of "no effect".
        freedom: degrees of freedom.
        treated_periods, control_periods: number of rows of the series with and without the change. These are
            days, also if drawn periods of several days are compared.
        treated_units: number of compared periods with the change: drawn periods if these last several
            days, else days.
        is_relative: whether the change is a fraction of the untreated value.
        adjusted_for: factors for which the comparison adjusts.
    """

    method: str
    change: float
    low: float
    high: float
    level: float
    p_value: float
    freedom: float
    treated_periods: int
    control_periods: int
    treated_units: int
    is_relative: bool
    adjusted_for: tuple[str, ...] = ()

    @property
    def excludes_zero(self) -> bool:
        """Whether the effect is significant: the confidence interval of the estimate excludes zero."""
        return self.low > 0.0 or self.high < 0.0


def switchback_effect(series: PeriodSeries, seed: int = 0, level: float = LEVEL) -> EffectEstimate | None:
    """Return the effect of a change that was switched on in some periods and off in the others.

    The result is None if there are too few periods.

    The series may contain periods of the baseline. These periods help to determine the effects of the
    weekday and of the work. The level of the values may differ between baseline and experiment. If periods of
    several days were drawn, these periods are compared instead of their days.

    Args:
        series: values of the periods. The values do not include the time just after a switch (washout), in
            which jobs from before the switch still run.
        seed: seed of the randomisation test.
        level: confidence level of the interval.
    """
    has_expected = series.expected is not None
    series, is_relative = usable_periods(series.relative_to_expected())
    if len(series.value) == 0:
        return None
    values = np.log(series.value) if is_relative else series.value
    days, adjusted = series, list[str]()
    if has_long_periods(series):
        series, adjusted = period_means(series, values)
        values = series.value
    arm = series.is_treated.astype(np.float64)
    columns, names = adjustment_columns(series)
    estimate = coefficient(np.column_stack([*columns, arm]), values)
    if estimate is None:
        columns, names = adjustment_columns(series, only_level=True)
        estimate = coefficient(np.column_stack([*columns, arm]), values)
    if estimate is None:
        return None
    bounds = estimate.interval(level)
    if series.block is not None and _assignments(series) >= _MIN_ASSIGNMENTS:
        bounds = _randomisation_bounds(series, columns, values, estimate, bounds, seed, level)
    names = adjusted + names + (["expected energy"] if has_expected else [])
    units = int(series.is_treated.sum())
    return _effect("switchback", days, estimate, bounds, level, is_relative, names, units)


def difference_effect(
    treated: PeriodSeries, control: PeriodSeries | None, level: float = LEVEL
) -> EffectEstimate | None:
    """Return the difference in differences of a treated and a control group.

    The difference in differences is the change of the treated group from the baseline to the deployment,
    minus the change of the control group. Without a control group, the result is the change of the
    treated group alone. It then also contains the effects of all other changes between baseline and
    deployment. The result is None if there are too few periods.

    Args:
        treated: periods of the treated group: first the periods of the baseline, then the periods of the
            deployment.
        control: the same periods of the control group; None means that there is no control group.
        level: confidence level of the interval.
    """
    has_expected = treated.expected is not None
    treated = treated.relative_to_expected()
    if control is not None:
        treated, control = _common_periods(treated, control.relative_to_expected())
    keep = np.isfinite(treated.value) if control is None else np.isfinite(treated.value + control.value)
    treated = treated.rows(keep)
    control = None if control is None else control.rows(keep)
    if len(treated.value) == 0:
        return None
    is_relative = bool((treated.value > 0).all() and (control is None or (control.value > 0).all()))
    transform: Callable[[Floats], Floats] = np.log if is_relative else np.asarray
    values = transform(treated.value)
    work = None if treated.work is None else np.log(np.maximum(treated.work, 1e-9))
    if control is not None:
        values = values - transform(control.value)
        if work is not None:
            work = work - np.log(np.maximum(control.work, 1e-9)) if control.work is not None else None
    columns = [np.ones(len(values)), *weekday_columns(treated.weekday).T]
    names = ["weekday"] if len(columns) > 1 else []
    if work is not None and np.ptp(work) > 0.0:
        columns.append(work)
        names.append("work")
    estimate = coefficient(
        np.column_stack([*columns, treated.is_treated.astype(np.float64)]), values, serial=True
    )
    if estimate is None:
        names = []
        simple = np.column_stack([columns[0], treated.is_treated.astype(np.float64)])
        estimate = coefficient(simple, values, serial=True)
    if estimate is None:
        return None
    names += ["expected energy"] if has_expected else []
    method = "before_after" if control is None else "difference_in_differences"
    return _effect(method, treated, estimate, estimate.interval(level), level, is_relative, names)


def carry_over(series: PeriodSeries, level: float = LEVEL) -> EffectEstimate | None:
    """Return the effect of the change in the previous period on the present period (carry-over).

    In a switchback, the change of the configuration is in force in random periods. The hours at the start of
    a period do not count (washout). The washout is too short if the confidence interval of the carry-over
    does not contain 0. The result is None if the carry-over cannot be determined.
    """
    series, is_relative = usable_periods(series.relative_to_expected())
    series = series.rows(series.is_experiment)
    follows = np.diff(series.start_day, prepend=-np.inf) < 1.5
    previous = np.roll(series.is_treated, 1)
    kept = series.rows(follows)
    if len(kept.value) == 0:
        return None
    values = np.log(kept.value) if is_relative else kept.value
    columns, names = adjustment_columns(kept)
    both = [*columns, kept.is_treated.astype(np.float64), previous[follows].astype(np.float64)]
    estimate = coefficient(np.column_stack(both), values)
    if estimate is None:
        return None
    shifted = replace(kept, is_treated=previous[follows])
    return _effect("carry_over", shifted, estimate, estimate.interval(level), level, is_relative, names)


def _effect(
    method: str,
    series: PeriodSeries,
    estimate: CoefficientEstimate,
    bounds: tuple[float, float],
    level: float,
    is_relative: bool,
    names: list[str],
    units: int | None = None,
) -> EffectEstimate:
    change, low, high = (float(np.expm1(x)) if is_relative else x for x in (estimate.value, *bounds))
    treated = int(series.is_treated.sum())
    return EffectEstimate(
        method,
        change,
        low,
        high,
        level,
        estimate.p_value(),
        estimate.freedom,
        treated,
        len(series.value) - treated,
        treated if units is None else units,
        is_relative,
        tuple(names),
    )


def usable_periods(series: PeriodSeries) -> tuple[PeriodSeries, bool]:
    """Return the time periods that an effect can be estimated from.

    The value of the KPI is known in these periods.

    Returns:
        The periods, and whether all their values are positive. Only then can the effect be estimated as a
        ratio.
    """
    keep = np.isfinite(series.value)
    if series.work is not None:
        keep &= np.isfinite(series.work) & (series.work > 0)
    known = series.rows(keep)
    return known, bool((known.value > 0).all())


def adjustment_columns(series: PeriodSeries, only_level: bool = False) -> tuple[list[Floats], list[str]]:
    """Return the regression's columns for influences other than the studied change, and their names.

    Such influences are, for example, the weekday and the amount of work.
    """
    columns: list[Floats] = [np.ones(len(series.value))]
    names = []
    if not only_level and len(days := weekday_columns(series.weekday).T):
        columns += list(days)
        names.append("weekday")
    if 0 < series.is_experiment.sum() < len(series.value):
        columns.append(series.is_experiment.astype(np.float64))
        names.append("baseline level")
    if not only_level and series.work is not None and np.ptp(series.work) > 0.0:
        columns.append(np.log(series.work))
        names.append("work")
    if not only_level and len(series.value) >= _TREND_PERIODS:
        columns.append((series.start_day - series.start_day.mean()) / max(1.0, np.ptp(series.start_day)))
        names.append("trend")
    return columns, names


def _assignments(series: PeriodSeries) -> float:
    """Return in how many ways the treated periods could have been drawn at random.

    The number of treated periods in each block of periods is fixed.
    """
    assert series.block is not None
    count = 1.0
    for block in np.unique(series.block[series.is_experiment]):
        arm = series.is_treated[series.is_experiment & (series.block == block)]
        total, treated = len(arm), int(arm.sum())
        for index in range(treated):
            count *= (total - index) / (index + 1)
    return count


def _drawn_assignments(series: PeriodSeries, seed: int) -> Floats:
    """Return random assignments of periods to treatment and control, for a significance test.

    Each row of the result is one assignment. The original assignment of the experiment was drawn by the
    same rule: the periods are divided into blocks, and in each block a fixed number of periods is drawn
    at random for treatment.
    """
    assert series.block is not None
    numbers = np.random.default_rng(seed)
    drawn = np.repeat(series.is_treated[None, :].astype(np.float64), _DRAWS, axis=0)
    for block in np.unique(series.block[series.is_experiment]):
        places = np.flatnonzero(series.is_experiment & (series.block == block))
        drawn[:, places] = numbers.permuted(drawn[:, places], axis=1)
    return drawn


def _randomisation_bounds(
    series: PeriodSeries,
    columns: list[Floats],
    values: Floats,
    estimate: CoefficientEstimate,
    bounds: tuple[float, float],
    seed: int,
    level: float,
) -> tuple[float, float]:
    """Widen the confidence interval of an effect, so that it agrees with a randomisation test.

    The test compares the observed effect with effects under other random assignments of the periods. It
    accepts an assumed effect that is compatible with the data. The bounds are widened until the interval
    contains every effect that the test accepts.

    Args:
        series: values of the KPI by period.
        columns: further regressors.
        values: values to which the regression was fitted.
        estimate: estimated effect.
        bounds: confidence interval from Student's t distribution.
        seed: seed of the random assignments.
        level: confidence level.
    """
    others = np.linalg.qr(np.column_stack(columns))[0]
    drawn = _drawn_assignments(series, seed)
    own = drawn - (drawn @ others) @ others.T
    strength = (own * own).sum(axis=1)
    usable = strength > 1e-9
    weights = own[usable] / strength[usable, None]
    arm = series.is_treated.astype(np.float64)
    by_value, by_arm = weights @ values, weights @ arm

    def is_accepted(change: float) -> bool:
        statistic = np.abs(by_value - change * by_arm)
        observed = abs(estimate.value - change)
        return bool((1 + (statistic >= observed - 1e-12).sum()) / (1 + len(statistic)) > 1.0 - level)

    width = bounds[1] - bounds[0]
    return (
        _accepted_bound(is_accepted, bounds[0], -width),
        _accepted_bound(is_accepted, bounds[1], width),
    )


def _accepted_bound(is_accepted: Callable[[float], bool], bound: float, step: float) -> float:
    """Return one widened bound of a confidence interval of an effect.

    The bound is the outermost effect that a test accepts. The search begins at `bound` and extends outward
    by up to three times `step`. If the test does not accept `bound` itself, `bound` is returned.

    Args:
        is_accepted: function that returns whether the test accepts an effect.
        bound: bound of the interval before the search.
        step: width of the interval, with the sign of the direction of the search.
    """
    if not is_accepted(bound):
        return bound
    inside, outside = bound, bound + 3.0 * step
    for _ in range(_BISECTIONS):
        middle = 0.5 * (inside + outside)
        inside, outside = (middle, outside) if is_accepted(middle) else (inside, middle)
    return inside


def _common_periods(first: PeriodSeries, second: PeriodSeries) -> tuple[PeriodSeries, PeriodSeries]:
    _, own, other = np.intersect1d(first.start_day, second.start_day, return_indices=True)
    keep_first, keep_second = (np.zeros(len(s.start_day), bool) for s in (first, second))
    keep_first[own], keep_second[other] = True, True
    return first.rows(keep_first), second.rows(keep_second)
