"""Tests of the busy time of a group of runs (time in which at least one run is running).

The result is compared with a simple count of every second.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.oracle.history.busy_time import MAX_INTERVALS, BusyTime

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=MAX_INTERVALS)
MANY = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 40)), max_size=120)


def seconds_by_run(runs, depth):
    """Return the expected contribution of each run to the busy time, in seconds.

    A second of a run counts if fewer than `depth` earlier runs were running in this second.
    """
    running, result = Counter(), []
    for start, length in runs:
        seconds = range(start, start + length)
        result.append(sum(running[second] < depth for second in seconds))
        running.update(seconds)
    return result


@given(RUNS, st.integers(1, 3))
def test_simultaneous_runs_count_up_to_the_depth(runs, depth):
    busy = BusyTime(depth)
    assert [busy.add(start, start + length) for start, length in runs] == seconds_by_run(runs, depth)


@given(MANY, st.integers(1, 3))
def test_forgotten_gaps_never_add_time(runs, depth):
    busy = BusyTime(depth)
    counted = sum(busy.add(start, start + length) for start, length in runs)
    assert counted <= sum(seconds_by_run(runs, depth))


@given(MANY)
def test_memory_is_bounded(runs):
    busy = BusyTime(2)
    for start, length in runs:
        busy.add(start, start + length)
    assert all(len(edges) <= 2 * MAX_INTERVALS for edges in busy._layers)


def test_sequential_runs_count_in_full():
    busy = BusyTime()
    assert sum(busy.add(10.0 * n, 10.0 * n + 9.0) for n in range(1000)) == pytest.approx(9000.0)
    assert busy.last_end_s == 9999.0


def test_a_run_over_gaps_counts_for_the_stored_gaps():
    busy = BusyTime()
    assert [busy.add(0, 10), busy.add(20, 30), busy.add(0, 30)] == [10, 10, 10]


@pytest.mark.parametrize(("start", "end"), [(5.0, 5.0), (5.0, 4.0)])
def test_a_run_without_length_counts_nothing(start, end):
    busy = BusyTime()
    assert busy.add(start, end) == 0.0
    assert busy.last_end_s == 0.0
