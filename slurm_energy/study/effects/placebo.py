"""Placebo checks: effects that the estimators of a study find where nothing was changed.

If an estimator finds effects in a baseline too often, its results for a deployment are not reliable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from slurm_energy.study.effects.drawn_periods import has_long_periods
from slurm_energy.study.effects.effects import (
    EffectEstimate,
    difference_effect,
    switchback_effect,
)
from slurm_energy.study.effects.period_series import Booleans, PeriodSeries

MAX_FALSE_SHARE = 0.10
"""Permitted share of placebos with an effect. With intervals of 95 % one in twenty is expected."""
_MIN_PERIODS = 8
_TRIALS = 40


@dataclass(frozen=True, slots=True)
class PlaceboCheck:
    """Result of a placebo check of a study.

    The check imagines deployments in the baseline, where nothing was changed, and looks for effects. An
    effect that it finds is false.

    Attributes:
        trials: number of imagined deployments in the baseline.
        false_effects: number of imagined deployments whose interval excludes 0.
        median_width: median width of the intervals, a measure of the precision of the study.
    """

    trials: int
    false_effects: int
    median_width: float

    @property
    def passes(self) -> bool:
        """Whether the estimator rarely finds an effect in the baseline, where nothing was changed.

        Any effect that the estimator finds in the baseline is false. The check passes if the number of false
        effects is at most the fraction `MAX_FALSE_SHARE` of the trials plus one. One more is permitted
        because trials overlap and are therefore correlated.
        """
        return self.false_effects <= MAX_FALSE_SHARE * self.trials + 1


def switchback_placebo(series: PeriodSeries, seed: int = 0, trials: int = _TRIALS) -> PlaceboCheck | None:
    """Return the placebo check of the estimator for switchbacks; None with fewer than 8 periods.

    A switchback is an experiment that is switched on and off on random days. The check applies the
    estimator to the baseline, in which nothing was changed. In each trial, days are marked as treated at
    random. The second week of each pair of weeks has the opposite marks of the first week. If periods of
    several days were drawn, whole periods of the baseline are marked, in pairs of neighbours.
    """
    base = series.rows(~series.is_experiment)
    count = len(base.value)
    period = np.arange(count) if base.period is None else np.unique(base.period, return_inverse=True)[1]
    periods = int(period.max(initial=-1)) + 1
    if periods < _MIN_PERIODS:
        return None
    distance = 1 if has_long_periods(base) else 7
    numbers = np.random.default_rng(seed)
    estimates = []
    for _ in range(trials):
        arm = _drawn_arms(periods, distance, numbers)[period]
        trial = replace(base, is_treated=arm, is_experiment=np.ones(count, bool), block=None)
        estimates.append(switchback_effect(trial))
    return _checked(estimates)


def _drawn_arms(count: int, distance: int, numbers: np.random.Generator) -> Booleans:
    """Return for each of `count` periods whether it is marked as treated, at random.

    Periods that are `distance` apart form pairs. The periods of a pair have opposite marks.
    """
    arm = np.zeros(count, np.bool_)
    for first in range(0, count, 2 * distance):
        heads = numbers.random(distance) < 0.5
        arm[first : first + 2 * distance] = np.concatenate([heads, ~heads])[: count - first]
    return arm


def difference_placebo(treated: PeriodSeries, control: PeriodSeries | None) -> PlaceboCheck | None:
    """Check the estimator of an effect on the baseline, where there is no effect (placebo check).

    The estimator is the difference in differences. Each trial imagines that the deployment started on
    another day of the baseline. The result is None if the baseline has fewer than 8 periods.
    """
    base = treated.rows(~treated.is_experiment)
    if len(base.value) < _MIN_PERIODS:
        return None
    estimates = []
    for begin in _begins(len(base.value)):
        arm = np.arange(len(base.value)) >= begin
        trial = replace(base, is_treated=arm, is_experiment=arm)
        other = None if control is None else control.rows(~control.is_experiment)
        estimates.append(difference_effect(trial, other))
    return _checked(estimates)


def _begins(count: int) -> Iterator[int]:
    """Yield first days of imagined deployments, for a placebo check on a baseline without changes.

    A day is given as its index in the baseline. At least a quarter of the baseline lies before each of these
    days, and at least a quarter after it.
    """
    margin = max(3, count // 4)
    yield from range(margin, count - margin + 1)


def _checked(estimates: list[EffectEstimate | None]) -> PlaceboCheck | None:
    known = [estimate for estimate in estimates if estimate is not None]
    if not known:
        return None
    widths = [estimate.high - estimate.low for estimate in known]
    return PlaceboCheck(len(known), sum(e.excludes_zero for e in known), float(np.median(widths)))
