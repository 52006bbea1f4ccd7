"""Tests of how a deployment assigns time periods and groups of jobs to treatment or control."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy.study.rollout.assignment import (
    AssignmentDesign,
    assignment_of,
    draw_groups,
    draw_switchback,
)

MONDAY = date(2026, 11, 2)


@examples(25)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_each_weekday_is_treated_as_often_as_not(seed: int, fortnights: int) -> None:
    drawn = draw_switchback(MONDAY, 14 * fortnights, seed)
    arms = Counter(
        (datetime.fromtimestamp(period.begin_s, UTC).weekday(), period.is_treated) for period in drawn.periods
    )
    assert set(arms.values()) == {fortnights}
    assert len(arms) == 14
    assert assignment_of(json.loads(json.dumps(drawn.document()))) == drawn
    assert draw_switchback(MONDAY, 14 * fortnights, seed) == drawn


@examples(25)
@given(st.integers(0, 2**31), st.integers(4, 40), st.integers(1, 3))
def test_each_block_has_both_arms(seed: int, count: int, period_days: int) -> None:
    drawn = draw_switchback(MONDAY, count * period_days, seed, period_days=period_days)
    blocks = Counter(period.block for period in drawn.periods)
    treated = Counter(period.block for period in drawn.periods if period.is_treated)
    assert all(treated[block] == 1 for block, size in blocks.items() if size == 2)
    assert sum(size == 1 for size in blocks.values()) == count % 2
    assert all(a.end_s == b.begin_s for a, b in zip(drawn.periods, drawn.periods[1:], strict=False))


def test_seeds_draw_different_arms() -> None:
    assert len({draw_switchback(MONDAY, 14, seed).periods for seed in range(40)}) > 20


def test_days_begin_at_local_midnight_also_when_clocks_change() -> None:
    drawn = draw_switchback(date(2026, 10, 24), 4, 1, timezone="Europe/Paris")
    assert [round((p.end_s - p.begin_s) / 3600) for p in drawn.periods] == [24, 25, 24, 24]


def test_a_job_belongs_to_the_arm_of_its_start_and_group() -> None:
    drawn = draw_switchback(MONDAY, 4, 7)
    period = drawn.periods[1]
    assert drawn.is_treated(period.begin_s) is period.is_treated
    assert drawn.is_treated(drawn.periods[-1].end_s) is None
    assert drawn.is_treated(period.begin_s - 86_400 * 9) is None
    groups = draw_groups(AssignmentDesign.USERS, {"a": 9.0, "b": 8.0, "c": 1.0, "d": 0.5}, 3, 100.0)
    assert {len(groups.treated), len(groups.control)} == {2}
    assert len({"a", "b"} & set(groups.treated)) == 1
    assert groups.is_treated(200.0, user=groups.treated[0]) is True
    assert groups.is_treated(200.0, user=groups.control[0]) is False
    assert groups.is_treated(200.0, user="new") is None
    assert groups.is_treated(50.0, user=groups.treated[0]) is None


def test_too_few_periods_or_groups_are_refused() -> None:
    with pytest.raises(UsageError, match="3 days have 3 periods, at least 4"):
        draw_switchback(MONDAY, 3, 1)
    with pytest.raises(UsageError, match="needs two of them"):
        draw_groups(AssignmentDesign.PARTITION, {"gpu": 1.0}, 1)
