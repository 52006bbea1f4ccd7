"""Tests of the estimated effects of a deployment.

The tests use known distributions, data with an effect of known size, series of few periods, and serial
correlation.
"""

from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.study.effects.effects import carry_over, difference_effect, switchback_effect
from slurm_energy.study.effects.period_series import PeriodSeries
from slurm_energy.study.effects.placebo import difference_placebo, switchback_placebo
from slurm_energy.study.goals.objective import StudyLimit
from slurm_energy.study.goals.verdicts import LimitVerdict, judge_limit
from slurm_energy.study.rollout.assignment import draw_switchback
from slurm_energy.study.statistics.student_t import student_cdf, student_quantile

EFFECT = -0.1


def days(baseline, experiment, seed=0, effect=EFFECT, noise=0.03, correlation=0.0):
    """Return an artificial series of daily values for tests of effects.

    The values are lower on weekends. The treated days have an effect. Pairs of days form blocks.
    """
    numbers = np.random.default_rng(seed)
    count = baseline + experiment
    errors = numbers.normal(size=count)
    for day in range(1, count):
        errors[day] = correlation * errors[day - 1] + np.sqrt(1 - correlation**2) * errors[day]
    day = np.arange(count)
    position = day - baseline
    is_experiment = position >= 0
    heads = numbers.random((count // 14 + 1, 7)) < 0.5
    first = heads[np.maximum(position, 0) // 14, position % 7]
    arm = is_experiment & (first ^ (position % 14 >= 7))
    block = np.where(is_experiment, 1 + position // 14 * 7 + position % 7, 0)
    value = 50 * np.exp(-0.15 * (day % 7 >= 5) + noise * errors) * np.where(arm, 1 + effect, 1.0)
    return PeriodSeries(day.astype(float), day % 7, arm, is_experiment, value, block=block)


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [(0.975, 1, 12.7062047), (0.975, 5, 2.5705818), (0.95, 10, 1.8124611), (0.975, 1e6, 1.9599664)],
)
def test_quantiles_of_students_t_are_those_of_the_tables(probability, freedom, quantile):
    assert student_quantile(probability, freedom) == pytest.approx(quantile, rel=1e-6)


@examples(50)
@given(st.floats(0.001, 0.999), st.floats(1, 200))
def test_quantile_inverts_the_distribution(probability, freedom):
    assert student_cdf(student_quantile(probability, freedom), freedom) == pytest.approx(
        probability, abs=1e-9
    )


def test_a_switchback_finds_a_planted_effect_despite_the_weekend():
    estimate = switchback_effect(days(14, 14, noise=0.005))
    assert estimate.low <= EFFECT <= estimate.high
    assert estimate.high - estimate.low < 0.03
    assert "weekday" in estimate.adjusted_for
    assert (estimate.treated_periods, estimate.control_periods) == (7, 21)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_switchback_intervals_cover_the_effect(correlation):
    estimates = [switchback_effect(days(14, 14, seed, correlation=correlation)) for seed in range(20)]
    assert sum(e.low <= EFFECT <= e.high for e in estimates) >= 18


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_difference_in_differences_covers_the_effect_and_ignores_what_both_groups_share(correlation):
    covered = 0
    for seed in range(40):
        treated, control = (
            days(14, 14, seed + shift, effect=0.0, correlation=correlation) for shift in (0, 100)
        )
        shared = np.where(treated.is_experiment, 1.5, 1.0)
        changed = shared * np.where(treated.is_experiment, 1 + EFFECT, 1.0)
        treated = replace(treated, is_treated=treated.is_experiment, value=treated.value * changed)
        control = replace(control, is_treated=np.zeros(28, bool), value=control.value * shared)
        estimate = difference_effect(treated, control)
        assert estimate.method == "difference_in_differences"
        covered += estimate.low <= EFFECT <= estimate.high
    assert covered >= 36


def long_periods(period_days, count, seed, effect=0.0, correlation=0.0):
    """Return days of a switchback whose drawn periods last several days, after five weeks of baseline."""
    series = days(35, period_days * count, seed, effect=0.0, correlation=correlation)
    drawn = draw_switchback(date(2026, 3, 2), period_days * count, seed, period_days=period_days).periods
    baseline = np.zeros(35, np.int64)
    arm = np.append(baseline > 0, np.repeat([period.is_treated for period in drawn], period_days))
    block = np.append(baseline, np.repeat([1 + period.block for period in drawn], period_days))
    value = series.value * np.where(arm, 1 + effect, 1.0)
    period = (np.arange(len(arm)) - 35) // period_days
    return replace(series, is_treated=arm, block=block, value=value, period=period)


@pytest.mark.parametrize(("period_days", "count"), [(7, 4), (3, 10), (2, 14)])
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_intervals_of_long_periods_cover_the_effect(period_days, count, correlation):
    estimates = [
        switchback_effect(long_periods(period_days, count, seed, EFFECT, correlation)) for seed in range(40)
    ]
    assert sum(e.low <= EFFECT <= e.high for e in estimates) >= 36


def test_drawn_periods_and_not_their_days_are_compared():
    series = long_periods(7, 4, 1, EFFECT)
    estimate = switchback_effect(series)
    assert (estimate.treated_periods, estimate.control_periods) == (14, 49)
    assert estimate.freedom == 6  # nine periods, three coefficients
    assert "weekday" in estimate.adjusted_for
    single = days(14, 14)
    assert switchback_effect(replace(single, period=np.arange(28))) == switchback_effect(single)
    assert switchback_placebo(replace(single, period=np.arange(28))) == switchback_placebo(single)


def test_the_placebo_check_draws_periods_of_the_same_length():
    checks = [switchback_placebo(long_periods(3, 10, seed, correlation=0.8)) for seed in range(10)]
    assert sum(check.false_effects for check in checks) <= 0.1 * sum(check.trials for check in checks)
    assert switchback_placebo(long_periods(7, 4, 1)) is None  # five periods are too few


def test_without_a_control_group_the_method_is_named_before_after():
    series = days(14, 14, effect=0.0, noise=0.005)
    series = replace(series, is_treated=series.is_experiment)
    assert difference_effect(series, None).method == "before_after"


def test_work_that_differs_between_the_arms_does_not_count_as_an_effect():
    series = days(14, 14, effect=0.0, noise=0.002)
    work = np.where(series.is_treated, 2.0, 1.0) * np.exp(np.random.default_rng(3).normal(0, 0.3, 28))
    heavier = replace(series, value=series.value * work)
    assert switchback_effect(heavier).excludes_zero
    estimate = switchback_effect(replace(heavier, work=work))
    assert not estimate.excludes_zero
    assert "work" in estimate.adjusted_for


def test_too_few_periods_give_no_estimate_and_unknown_values_are_left_out():
    series = days(0, 2)
    assert switchback_effect(series) is None
    assert switchback_effect(series.rows(np.zeros(2, bool))) is None
    longer = days(14, 14)
    value = longer.value.copy()
    value[20] = np.nan
    estimate = switchback_effect(replace(longer, value=value))
    assert estimate.treated_periods + estimate.control_periods == 27


def test_values_that_are_not_positive_are_compared_by_difference():
    series = days(14, 14, noise=0.001)
    estimate = switchback_effect(replace(series, value=series.value - 50.0))
    assert not estimate.is_relative
    assert estimate.change < -2.0


def test_randomisation_widens_an_interval_that_the_design_does_not_support():
    series = days(0, 28, seed=4)
    one_block = switchback_effect(series)
    without = switchback_effect(replace(series, block=None))
    assert one_block.low <= without.low
    assert one_block.high >= without.high


def test_carry_over_into_the_next_day_is_found():
    series = days(0, 56, noise=0.004, effect=EFFECT)
    assert not carry_over(series).excludes_zero
    delayed = series.value * np.where(np.roll(series.is_treated, 1), 0.95, 1.0)
    assert carry_over(replace(series, value=delayed)).change == pytest.approx(-0.05, abs=0.02)


def test_a_baseline_without_change_passes_the_placebo_checks():
    series = days(28, 0, noise=0.03)
    for check in (switchback_placebo(series), difference_placebo(series, None)):
        assert check.passes
        assert check.median_width > 0.0
    assert switchback_placebo(days(7, 14)) is None


def test_a_drifting_baseline_fails_the_placebo_check_of_before_and_after():
    series = days(28, 0, noise=0.002)
    drifting = replace(series, value=series.value * np.where(np.arange(28) >= 14, 1.2, 1.0))
    assert not difference_placebo(drifting, None).passes


@pytest.mark.parametrize(("count", "verdict"), [(49, LimitVerdict.AT_RISK), (63, LimitVerdict.BROKEN)])
def test_a_single_treated_period_breaks_no_limit_by_its_interval(count, verdict):
    class Periods:
        def series(self, kpi, account):
            return long_periods(7, 4, 1, effect=0.09).rows(np.arange(63) < count)

    (result,) = judge_limit(Periods(), StudyLimit(kpi="mean_jct_s", worse_percent=2.0))
    assert result.level_low > result.maximum  # the whole interval is beyond the limit
    assert result.verdict is verdict
