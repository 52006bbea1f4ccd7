"""Tests of the conversion of a job order to site factors, which Slurm adds to job priorities.

A job later in the order always gets a lower site factor. As few site factors as possible change.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.priority import site_factors
from slurm_energy.priority.site_factors import (
    EXACT_PLACES,
    MAX_SITE_FACTOR,
    MIN_SITE_FACTOR,
    ORDER_TOLERANCE,
    SPACING,
    spread_site_factors,
    stable_order,
    update_site_factors,
)

NUMBERS = st.one_of(
    st.integers(0, 12),
    st.integers(MIN_SITE_FACTOR - 3, MIN_SITE_FACTOR + 12),
    st.integers(MAX_SITE_FACTOR - 12, MAX_SITE_FACTOR + 3),
    st.integers(MIN_SITE_FACTOR, MAX_SITE_FACTOR),
    st.integers(-(2**31), 2**32),
)


def in_order(numbers):
    assert np.all(np.diff(numbers) < 0)
    assert len(numbers) == 0 or MIN_SITE_FACTOR <= numbers[-1] <= numbers[0] <= MAX_SITE_FACTOR
    return True


@given(st.integers(0, 3000))
def test_initial_site_factors_fall_by_the_spacing(count):
    numbers = spread_site_factors(count)
    assert len(numbers) == count and in_order(numbers)
    assert set(np.diff(numbers)) <= {-SPACING}


def test_initial_site_factors_of_very_many_jobs():
    assert in_order(spread_site_factors(3_000_000))


@given(st.lists(NUMBERS, max_size=60))
def test_any_present_factors_give_a_strict_order(old):
    numbers = update_site_factors(np.array(old, np.int64))
    assert len(numbers) == len(old) and in_order(numbers)


def fewest_changes(old):
    """Return how many site factors must change at least so that a given order of jobs holds.

    Slurm adds a job's site factor to the priority of the job. A job later in the order must have a lower
    site factor. The function tries all subsets of jobs that keep their site factors.

    Args:
        old: present site factors of the jobs, in the wanted order.
    """
    count, best = len(old), 0
    for chosen in range(1 << count):
        stays = [i for i in range(count) if chosen >> i & 1]
        fits = all(MIN_SITE_FACTOR + count - 1 - i <= old[i] <= MAX_SITE_FACTOR - i for i in stays)
        fits &= all(old[a] - old[b] >= b - a for a, b in itertools.pairwise(stays))
        best = max(best, len(stays) if fits else 0)
    return count - best


@given(st.lists(st.integers(MIN_SITE_FACTOR + 100, MIN_SITE_FACTOR + 115), max_size=8))
def test_the_number_of_changes_is_minimal(old):
    changed = int(np.sum(update_site_factors(np.array(old, np.int64)) != old))
    assert changed == fewest_changes(old)


@given(st.integers(1, 200), st.data())
def test_a_new_job_changes_no_other_job(count, data):
    place = data.draw(st.integers(0, count))
    old = np.insert(spread_site_factors(count), place, 0)
    assert np.flatnonzero(update_site_factors(old) != old).tolist() == [place]


@given(st.integers(1, 200), st.data())
def test_a_leaving_job_changes_no_other_job(count, data):
    leaves = data.draw(st.sets(st.integers(0, count - 1)))
    old = np.delete(spread_site_factors(count), sorted(leaves))
    assert np.array_equal(update_site_factors(old), old)


@given(st.integers(2, 200), st.data())
def test_a_moving_job_is_the_only_change(count, data):
    here, there = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    rows = list(range(count))
    rows.insert(there, rows.pop(here))
    old = spread_site_factors(count)[rows]
    assert np.sum(update_site_factors(old) != old) <= 1


@pytest.mark.slow
def test_thousands_of_new_jobs_at_one_place_cost_few_changes_each():
    numbers, changes = spread_site_factors(100), 0
    for _ in range(2000):
        old = np.insert(numbers, 50, 0)
        numbers = update_site_factors(old)
        assert in_order(numbers)
        changes += int(np.sum(numbers != old))
    assert changes < 2000 * 40


def test_first_in_first_out_exhausts_the_range_and_restarts():
    numbers, changes = MIN_SITE_FACTOR + SPACING * np.arange(50, 0, -1), 0
    for _ in range(200):
        old = np.append(numbers[1:], [0])
        numbers = update_site_factors(old)
        assert in_order(numbers)
        changes += int(np.sum(numbers[:-1] != old[:-1]))
    assert changes == 49  # once, for all of them


@given(st.lists(st.integers(0, 9), max_size=9))
def test_longest_nonincreasing(values):
    array = np.array(values, np.int64)
    found = site_factors.longest_nonincreasing(array)
    assert np.all(np.diff(found) > 0) and np.all(np.diff(array[found]) <= 0)
    longest = [0] * len(values)
    for i, value in enumerate(values):
        longest[i] = 1 + max((longest[j] for j in range(i) if values[j] >= value), default=0)
    assert len(found) == max(longest, default=0)


@given(st.lists(NUMBERS, max_size=400), st.integers(0, 5000))
def test_only_jobs_far_from_their_turn_deviate_and_not_far(old, zeros):
    rows = stable_order(np.array([*old, *[0] * zeros], np.int64))
    assert sorted(rows.tolist()) == list(range(len(old) + zeros))
    assert rows[:EXACT_PLACES].tolist() == list(range(min(EXACT_PLACES, len(rows))))
    places = np.empty(len(rows), np.int64)
    places[rows] = np.arange(len(rows))
    moved = np.abs(places - np.arange(len(rows)))
    assert np.all(moved <= ORDER_TOLERANCE * np.maximum(places, np.arange(len(rows))) + 1)


def test_without_site_factors_the_order_is_the_policys():
    assert stable_order(np.zeros(5000, np.int64)).tolist() == list(range(5000))


@given(st.integers(EXACT_PLACES, 4990), st.randoms(use_true_random=False))
def test_small_moves_deep_in_a_long_queue_change_nothing(first, chance):
    """If ten neighbouring jobs deep in the queue change their order, few site factors change.

    The queue is divided into blocks. If all these jobs are in one block, no site factor changes. If they are
    at the border of two blocks, at most nine change.
    """
    old = spread_site_factors(5000)
    some = old[first : first + 10].tolist()
    chance.shuffle(some)
    old[first : first + 10] = some
    numbers = update_site_factors(old[stable_order(old)])
    assert np.sum(numbers != old[stable_order(old)]) <= 9
    inside = int(np.log(first / EXACT_PLACES) / np.log1p(ORDER_TOLERANCE)) == int(
        np.log((first + 9) / EXACT_PLACES) / np.log1p(ORDER_TOLERANCE)
    )
    assert not inside or np.array_equal(numbers, spread_site_factors(5000))
