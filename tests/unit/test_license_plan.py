"""Tests of the Slurm licenses that are withheld from jobs to represent a power budget.

One license stands for one watt. The number of free licenses follows the headroom of the budget (power
that is left under its limit) and its future limits.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.budget.license_plan import MAX_STEPS, WithheldPower, withheld_power


def _withheld_at(entries: list[WithheldPower], unix_s: float) -> int:
    return sum(
        e.watts
        for e in entries
        if e.start_unix_s <= unix_s and (e.end_unix_s is None or unix_s < e.end_unix_s)
    )


def test_free_licenses_equal_the_headroom_and_follow_the_coming_limits() -> None:
    steps = [(2000.0, 600.0), (3000.0, 900.0)]
    entries = withheld_power(2000, 300, 250.0, 800.0, steps, 1000.5)
    assert entries == [
        WithheldPower(1000, None, 1350),
        WithheldPower(1000, 2000, 100),
        WithheldPower(2000, 3000, 300),
    ]
    assert [2000 - 300 - _withheld_at(entries, at) for at in (1001, 2001, 3001)] == [250, 50, 350]


def test_without_a_limit_nothing_is_withheld() -> None:
    assert withheld_power(1000, 400, math.inf, math.inf, [], 5.0) == [WithheldPower(5, None, 0)]


def test_a_coming_limit_is_kept_if_there_is_no_limit_now() -> None:
    steps = [(50.0, 300.0), (90.0, math.inf), (200.0, 5000.0)]
    entries = withheld_power(1000, 100, math.inf, math.inf, steps, 0.0, idle_watts=120.0)
    assert entries == [WithheldPower(0, None, 0), WithheldPower(50, 90, 820)]
    idle = withheld_power(1000, 0, math.inf, math.inf, [(50.0, 100.0)], 0.0, idle_watts=120.0)
    assert [_withheld_at(idle, at) for at in (0, 50)] == [0, 1000]


@pytest.mark.parametrize(("first", "second"), [(100.25, 100.75), (100.0, 100.5)])
def test_changes_within_a_second_do_not_overlap(first: float, second: float) -> None:
    entries = withheld_power(1000, 0, 500.0, 800.0, [(first, 600.0), (second, 400.0)], 0.0)
    assert [(one.start_unix_s, one.end_unix_s, one.watts) for one in entries] == [
        (0, None, 500),
        (100, None, 400),
    ]


def test_above_the_limit_nothing_is_free() -> None:
    assert withheld_power(1000, 400, -50.0, 500.0, [], 5.0) == [WithheldPower(5, None, 600)]
    assert withheld_power(1000, 1200, 30.0, 500.0, [], 5.0) == [WithheldPower(5, None, 0)]


_WATTS = st.floats(0, 1e6, allow_nan=False)


@given(
    total=st.integers(1, 2_000_000),
    used=st.integers(0, 2_000_000),
    headroom=st.floats(-1e6, 1e6),
    limit=st.one_of(_WATTS, st.just(math.inf)),
    steps=st.lists(
        st.tuples(st.integers(1001, 90_000), _WATTS), max_size=200, unique_by=lambda step: step[0]
    ),
)
def test_the_sum_is_within_the_total_and_never_frees_more_than_the_limit(
    total: int, used: int, headroom: float, limit: float, steps: list[tuple[float, float]]
) -> None:
    steps.sort()
    entries = withheld_power(total, used, headroom, limit, steps, 1000.0)
    assert len(entries) <= MAX_STEPS + 2
    now = _withheld_at(entries, 1000)
    assert total - used - now <= max(headroom, 0.0) + 1e-6
    for at, watts in steps:
        withheld = _withheld_at(entries, at)
        assert 0 <= withheld <= total
        if math.isfinite(limit):
            assert withheld >= min(total, now + limit - watts) - 1
