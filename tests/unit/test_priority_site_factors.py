"""From an order of jobs to site factors: always strictly falling, and few of them change."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.priority import site_factors
from slurm_energy.priority.site_factors import COARSE, EXACT, HIGHEST, LOWEST, SPACING, fresh, kept, settled

NUMBERS = st.one_of(
    st.integers(0, 12),
    st.integers(LOWEST - 3, LOWEST + 12),
    st.integers(HIGHEST - 12, HIGHEST + 3),
    st.integers(LOWEST, HIGHEST),
    st.integers(-(2**31), 2**32),
)


def in_order(numbers):
    assert np.all(np.diff(numbers) < 0)
    assert len(numbers) == 0 or LOWEST <= numbers[-1] <= numbers[0] <= HIGHEST
    return True


@given(st.integers(0, 3000))
def test_fresh_numbers_fall_by_the_spacing(count):
    numbers = fresh(count)
    assert len(numbers) == count and in_order(numbers)
    assert set(np.diff(numbers)) <= {-SPACING}


def test_fresh_numbers_of_more_jobs_than_slurm_takes():
    assert in_order(fresh(3_000_000))


@given(st.lists(NUMBERS, max_size=60))
def test_any_old_numbers_give_a_strict_order(old):
    numbers = kept(np.array(old, np.int64))
    assert len(numbers) == len(old) and in_order(numbers)


def fewest_changes(old):
    """Return by brute force over subsets how many numbers must change at least."""
    count, best = len(old), 0
    for chosen in range(1 << count):
        stays = [i for i in range(count) if chosen >> i & 1]
        fits = all(LOWEST + count - 1 - i <= old[i] <= HIGHEST - i for i in stays)
        fits &= all(old[a] - old[b] >= b - a for a, b in itertools.pairwise(stays))
        best = max(best, len(stays) if fits else 0)
    return count - best


@given(st.lists(st.integers(LOWEST + 100, LOWEST + 115), max_size=8))
def test_no_numbers_change_that_need_not(old):
    changed = int(np.sum(kept(np.array(old, np.int64)) != old))
    assert changed == fewest_changes(old)


@given(st.integers(1, 200), st.data())
def test_a_newcomer_changes_nobody_else(count, data):
    place = data.draw(st.integers(0, count))
    old = np.insert(fresh(count), place, 0)
    assert np.flatnonzero(kept(old) != old).tolist() == [place]


@given(st.integers(1, 200), st.data())
def test_who_leaves_changes_nobody(count, data):
    leaves = data.draw(st.sets(st.integers(0, count - 1)))
    old = np.delete(fresh(count), sorted(leaves))
    assert np.array_equal(kept(old), old)


@given(st.integers(2, 200), st.data())
def test_who_moves_changes_alone(count, data):
    here, there = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    rows = list(range(count))
    rows.insert(there, rows.pop(here))
    old = fresh(count)[rows]
    assert np.sum(kept(old) != old) <= 1


def test_thousands_of_newcomers_at_one_place_cost_few_changes_each():
    numbers, changes = fresh(100), 0
    for _ in range(2000):
        old = np.insert(numbers, 50, 0)
        numbers = kept(old)
        assert in_order(numbers)
        changes += int(np.sum(numbers != old))
    assert changes < 2000 * 40


def test_first_in_first_out_uses_the_range_up_and_begins_again():
    numbers, changes = LOWEST + SPACING * np.arange(50, 0, -1), 0
    for _ in range(200):
        old = np.append(numbers[1:], [0])
        numbers = kept(old)
        assert in_order(numbers)
        changes += int(np.sum(numbers[:-1] != old[:-1]))
    assert changes == 49  # once, all of them


@given(st.lists(st.integers(0, 9), max_size=9))
def test_longest_falling(values):
    array = np.array(values, np.int64)
    found = site_factors.longest_falling(array)
    assert np.all(np.diff(found) > 0) and np.all(np.diff(array[found]) <= 0)
    longest = [0] * len(values)
    for i, value in enumerate(values):
        longest[i] = 1 + max((longest[j] for j in range(i) if values[j] >= value), default=0)
    assert len(found) == max(longest, default=0)


@given(st.lists(NUMBERS, max_size=400), st.integers(0, 5000))
def test_only_jobs_far_from_their_turn_stand_elsewhere_and_not_far(old, zeros):
    rows = settled(np.array([*old, *[0] * zeros], np.int64))
    assert sorted(rows.tolist()) == list(range(len(old) + zeros))
    assert rows[:EXACT].tolist() == list(range(min(EXACT, len(rows))))
    places = np.empty(len(rows), np.int64)
    places[rows] = np.arange(len(rows))
    moved = np.abs(places - np.arange(len(rows)))
    assert np.all(moved <= COARSE * np.maximum(places, np.arange(len(rows))) + 1)


def test_without_numbers_the_order_is_the_policys():
    assert settled(np.zeros(5000, np.int64)).tolist() == list(range(5000))


@given(st.integers(EXACT, 4990), st.randoms(use_true_random=False))
def test_little_moves_deep_in_a_long_queue_change_nothing(first, chance):
    """Of jobs that change places among neighbours only those at the border of two blocks may change."""
    old = fresh(5000)
    some = old[first : first + 10].tolist()
    chance.shuffle(some)
    old[first : first + 10] = some
    numbers = kept(old[settled(old)])
    assert np.sum(numbers != old[settled(old)]) <= 9
    inside = int(np.log(first / EXACT) / np.log1p(COARSE)) == int(
        np.log((first + 9) / EXACT) / np.log1p(COARSE)
    )
    assert not inside or np.array_equal(numbers, fresh(5000))
