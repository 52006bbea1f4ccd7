"""Tests of the division of a global batch among ranks of different speed.

The tests check that the division is optimal, that no sample is lost, and when a rank gets no samples. They
also check that the fitted speeds of the ranks follow changes of the real speeds.
"""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy.training.shares import GOALS, ExchangeCost, RankCost, divide, equal, predict, scaled
from slurm_energy.training.step_time import CONFIRMATIONS, MAX_WINDOWS, StepTimeFit

POSITIVE = st.floats(1e-3, 10.0)
COSTS = st.lists(
    st.builds(RankCost, st.floats(0, 5.0), POSITIVE, st.floats(0.0, 500.0), st.floats(0.0, 200.0)),
    min_size=1,
    max_size=3,
)
EXCHANGES = st.builds(ExchangeCost, st.floats(0, 2.0), st.floats(0, 2.0))
FAST, MIDDLE, SLOW = (RankCost(0.0, 0.01 / speed) for speed in (1, 0.6, 0.3))


def every_split(costs, total, exchange):
    for samples in itertools.product(range(total + 1), repeat=len(costs)):
        if sum(samples) == total:
            yield predict(samples, costs, exchange)


@examples(60)
@given(COSTS, st.integers(1, 9), EXCHANGES)
def test_time_is_the_least_of_all_divisions(costs, total, exchange):
    split = divide(costs, total, "time", exchange=exchange)
    assert sum(split.samples) == total
    assert min(split.samples) >= 0
    least_s = min(other.step_s for other in every_split(costs, total, exchange))
    assert split.step_s == pytest.approx(least_s, rel=1e-9)


@examples(30)
@given(COSTS, st.integers(1, 7), EXCHANGES, st.floats(1e-3, 1.0))
def test_energy_and_edp_are_the_least_of_all_divisions(costs, total, exchange, slowdown):
    splits = list(every_split(costs, total, exchange))
    limit_s = min(split.step_s for split in splits) * (1 + slowdown)
    thrifty = divide(costs, total, "energy", exchange=exchange, max_slowdown=slowdown)
    assert thrifty.step_s <= limit_s * (1 + 1e-9)
    least = min(split.step_joules for split in splits if split.step_s <= limit_s * (1 - 1e-9))
    assert thrifty.step_joules <= least * (1 + 1e-9) + 1e-9
    balanced = divide(costs, total, "edp", exchange=exchange)
    least = min(split.step_joules * split.step_s for split in splits)
    assert balanced.step_joules * balanced.step_s <= least * (1 + 1e-9) + 1e-9


@examples(8)
@given(
    st.lists(st.builds(RankCost, st.floats(0, 1.0), POSITIVE, POSITIVE, POSITIVE), min_size=2, max_size=12),
    st.integers(20, 4000),
    EXCHANGES,
    st.sampled_from(GOALS),
)
def test_large_divisions_conserve_samples_and_never_lose_to_equal_shares(costs, total, exchange, goal):
    split = divide(costs, total, goal, exchange=exchange)
    assert sum(split.samples) == total
    even = predict(equal(len(costs), total), costs, exchange)
    fastest = divide(costs, total, "time", exchange=exchange)
    if goal == "time":
        assert split.step_s <= even.step_s * (1 + 1e-9)
    elif goal == "energy":
        assert split.step_joules <= fastest.step_joules * (1 + 1e-9)
    else:
        assert split.step_joules * split.step_s <= even.step_joules * even.step_s * (1 + 1e-9)


def test_ideal_shares_of_the_speeds_1_06_03():
    split = divide([FAST, MIDDLE, SLOW], 190, "time")
    assert split.samples == (100, 60, 30)
    assert split.step_s == pytest.approx(1.0)


def test_fewer_ranks_are_chosen_where_the_exchange_costs_more_than_it_saves():
    costs = [FAST, MIDDLE, SLOW]  # 190 samples: 1.9 s on the fast rank alone, 1.1875 s on two, 1 s on three
    chosen = [
        len(divide(costs, 190, "time", exchange=ExchangeCost(message_s=delay)).active)
        for delay in (0.0, 0.08, 0.1, 0.3, 0.4)
    ]
    assert chosen == [3, 3, 2, 2, 1]


def test_a_slow_rank_that_draws_much_gets_no_samples_within_the_accepted_slowdown():
    costs = [RankCost(0.0, 0.01, 300.0, 100.0), RankCost(0.0, 0.1, 900.0, 100.0)]
    assert divide(costs, 110, "time").samples == (100, 10)
    assert divide(costs, 110, "energy", max_slowdown=0.1).samples == (110, 0)
    assert divide(costs, 110, "energy", max_slowdown=0.05).samples == (105, 5)


def test_unknown_power_divides_by_time_and_leaves_energy_unknown():
    costs = [RankCost(0.0, 0.01, 300.0, 100.0), RankCost(0.0, 0.1, None, 100.0)]
    split = divide(costs, 110, "edp")
    assert split.samples == (100, 10)
    assert split.step_joules is None


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8).filter(any), st.data())
@examples(60)
def test_a_smaller_batch_keeps_the_proportions(samples, data):
    total = data.draw(st.integers(0, sum(samples)))
    parts = scaled(samples, total)
    assert sum(parts) == total
    assert all(
        abs(part - count * total / sum(samples)) < 1 for part, count in zip(parts, samples, strict=True)
    )


@pytest.mark.parametrize(
    "arguments",
    [([], 4), ([FAST], 0), ([FAST], 4, "fast"), ([RankCost(-1.0, 1.0)], 4), ([RankCost(0.0, math.nan)], 4)],
)
def test_invalid_input_is_refused(arguments):
    with pytest.raises(UsageError):
        divide(*arguments)


@examples(40)
@given(st.lists(st.tuples(st.integers(1, 200), POSITIVE), max_size=20), st.integers(1, 200), POSITIVE)
def test_constant_observations_are_predicted_whatever_came_before(history, size, seconds):
    fit = StepTimeFit()
    for window in history:
        fit.add(*window)
    for _ in range(MAX_WINDOWS + CONFIRMATIONS):
        fit.add(size, seconds)
    assert fit.seconds(size) == pytest.approx(seconds, rel=1e-6)


def test_a_fit_separates_fixed_and_proportional_time():
    fit = StepTimeFit()
    for size in (100, 60, 30):
        fit.add(size, 0.5 + 0.01 * size)
    fit.add(50, 9.0)  # an outlier does not move the fit
    fit.add(50, 1.0)
    assert (fit.fixed_s, fit.sample_s) == (pytest.approx(0.5), pytest.approx(0.01))
    assert fit.changes == 0


def test_three_slow_windows_are_a_change_and_replace_the_fit():
    fit = StepTimeFit()
    for _ in range(6):
        assert not fit.add(100, 1.0)
    assert not fit.add(100, 2.0)
    assert not fit.add(100, 2.0)
    assert fit.add(100, 2.0)
    assert fit.seconds(100) == pytest.approx(2.0)
    assert fit.changes == 1


def test_a_fit_survives_a_checkpoint():
    fit = StepTimeFit()
    for size in (100, 50):
        fit.add(size, 0.5 + 0.01 * size)
    copy = StepTimeFit.from_json(fit.to_json())
    assert copy.seconds(70) == fit.seconds(70)
    assert copy.add(80, 1.3) == fit.add(80, 1.3)
    assert copy.to_json() == fit.to_json()


@examples(30)
@given(COSTS, st.integers(3, 60), EXCHANGES, st.sampled_from(GOALS))
def test_no_rank_pauses_unless_it_may(costs, total, exchange, goal):
    split = divide(costs, total, goal, exchange=exchange, may_pause=False)
    assert min(split.samples) >= 1
    assert sum(split.samples) == total
