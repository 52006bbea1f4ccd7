"""Tests of the distribution of power budgets among groups of devices.

No budget may be exceeded, and no group may get less than its floor (lowest power limit). Each distribution
policy must lower the groups in its own order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from budget_examples import LEVELS, budget, groups
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.budget.distribution import distribute
from slurm_energy.budget.group_response import group_limits, time_ratios
from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.budget.power_groups import NO_JOB, BudgetColumns, PowerGroups, PowerShares

POLICIES = list(DistributionPolicy)


def used_watts(table: PowerGroups, budgets: BudgetColumns, shares: PowerShares) -> np.ndarray[Any, Any]:
    limits = np.where(np.isnan(shares.limit_watts), table.max_watts, shares.limit_watts)
    return budgets.members @ limits + budgets.fixed_watts


@st.composite
def cases(draw: st.DrawFn) -> tuple[PowerGroups, BudgetColumns]:
    count = draw(st.integers(0, 8))
    rows = draw(st.integers(0, 4))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    low = random.uniform(0, 200, count)
    high = low + random.choice([0.0, 1.0, 100.0, 700.0], count)
    levels = draw(st.integers(1, 5))
    grid = np.sort(random.uniform(low[:, None], high[:, None] + 1e-9, (count, levels)), axis=1)
    devices = random.integers(1, 9, count)
    table = groups(
        count,
        job_id=random.choice([NO_JOB, 1, 2, 3], count),
        devices=devices,
        min_watts=low,
        max_watts=high,
        draw_watts=random.choice([0.0, 50.0, 300.0, 1e4, np.nan], count),
        floor_watts=random.uniform(0, 400, count),
        level_watts=grid,
        time_ratio=np.sort(1 + random.exponential(0.5, (count, levels)), axis=1)[:, ::-1],
        slowdown_limit=random.choice([np.nan, 0.0, 0.05, 0.5], count),
        weight=random.choice([0.0, 1.0, 8.0], count),
        deadline_s=random.choice([np.inf, -50.0, 0.0, 3600.0], count),
    )
    members = random.integers(0, 2, (rows, count)) * random.integers(0, devices + 1, (rows, count))
    limits = random.choice([np.inf, 0.0, -5.0, 500.0, 1000.0, 3000.0], rows)
    return table, BudgetColumns(limits, random.choice([0.0, 200.0], rows), members)


@given(cases(), st.sampled_from(POLICIES))
@examples(200)
def test_every_budget_is_kept_or_all_its_groups_have_their_floors(
    case: tuple[PowerGroups, BudgetColumns], policy: DistributionPolicy
) -> None:
    table, budgets = case
    shares = distribute(table, budgets, policy)
    limits = group_limits(table)
    finite = np.isfinite(budgets.limit_watts)
    covered = (budgets.members[finite] > 0).any(axis=0)
    assert np.array_equal(np.isnan(shares.limit_watts), ~covered)
    assert np.all(shares.limit_watts[covered] >= limits.floor_watts[covered])
    assert np.all(shares.limit_watts[covered] <= table.max_watts[covered] + 1e-9)
    for row in np.flatnonzero(finite):
        rows = budgets.members[row] > 0
        used = float(budgets.members[row][rows] @ shares.limit_watts[rows] + budgets.fixed_watts[row])
        assert shares.committed_watts[row] == pytest.approx(used)
        if used > budgets.limit_watts[row] + 1e-6:
            assert shares.shortfall_watts[row] == pytest.approx(used - budgets.limit_watts[row])
            assert np.allclose(shares.limit_watts[rows], limits.floor_watts[rows])
        else:
            assert shares.shortfall_watts[row] == 0.0


@given(cases(), st.sampled_from(POLICIES))
@examples(200)
def test_no_power_is_left_that_a_group_could_use(
    case: tuple[PowerGroups, BudgetColumns], policy: DistributionPolicy
) -> None:
    """A distribution of power among groups of devices leaves no power that a group could still use.

    If a group gets less than its maximum, at least one of the group's budgets has no free power left.
    """
    table, budgets = case
    shares = distribute(table, budgets, policy)
    free = budgets.limit_watts - shares.committed_watts
    for group in np.flatnonzero(shares.limit_watts < table.max_watts - 1e-3):
        above = budgets.members[:, group] > 0
        assert np.min(free[above]) <= 1e-3
        assert budgets.members[shares.binding[group], group] > 0


def test_equal_gives_the_same_watts_as_far_as_the_ranges_allow() -> None:
    table = groups(3, max_watts=[400.0, 400.0, 150.0], draw_watts=[400.0, 400.0, 150.0])
    shares = distribute(table, budget(600.0, count=3), DistributionPolicy.EQUAL)
    assert shares.limit_watts == pytest.approx([225.0, 225.0, 150.0], abs=0.01)


def test_proportional_takes_the_same_part_of_the_expected_power() -> None:
    table = groups(2, draw_watts=[400.0, 200.0])
    shares = distribute(table, budget(450.0), DistributionPolicy.PROPORTIONAL)
    assert shares.limit_watts == pytest.approx([300.0, 150.0], abs=0.01)


@pytest.mark.parametrize("policy", POLICIES)
def test_power_that_a_job_does_not_use_goes_to_others(policy: DistributionPolicy) -> None:
    table = groups(2, draw_watts=[400.0, 150.0])
    shares = distribute(table, budget(550.0), policy)
    assert shares.limit_watts == pytest.approx([400.0, 150.0], abs=0.01)


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_jobs_get_equal_limits(policy: DistributionPolicy) -> None:
    shares = distribute(groups(4), budget(1000.0, count=4), policy)
    assert shares.limit_watts == pytest.approx([250.0] * 4, abs=0.01)


@pytest.mark.parametrize("policy", POLICIES)
def test_slowdown_limits_are_kept_before_other_jobs_are_fast(policy: DistributionPolicy) -> None:
    table = groups(2, slowdown_limit=[0.05, np.nan])
    shares = distribute(table, budget(520.0), policy)
    assert time_ratios(table, shares.limit_watts[:, None])[0, 0] <= 1.05 + 1e-6
    assert shares.keeps_slowdown.tolist() == [True, True]
    tight = distribute(table, budget(300.0), policy)
    assert tight.keeps_slowdown.tolist() == [False, True]


def test_a_job_divides_its_slowdown_limit_among_its_kinds_of_devices() -> None:
    table = groups(2, job_id=[7, 7], slowdown_limit=[0.1, 0.1])
    limits = group_limits(table).slowdown_watts
    assert np.prod(time_ratios(table, limits[:, None])) <= 1.1 + 1e-6


def test_deadline_first_lowers_the_least_slack_last() -> None:
    table = groups(3, deadline_s=[np.inf, 7200.0, 60.0])
    shares = distribute(table, budget(700.0, count=3), DistributionPolicy.DEADLINE_FIRST)
    assert shares.limit_watts == pytest.approx([100.0, 200.0, 400.0], abs=0.1)


def test_least_edp_takes_power_from_jobs_that_it_slows_down_least() -> None:
    levels = np.tile(np.linspace(100.0, 400.0, LEVELS), (2, 1))
    flat = np.linspace(1.1, 1.0, LEVELS)
    table = groups(2, level_watts=levels, time_ratio=np.stack([flat, 400.0 / levels[0]]))
    shares = distribute(table, budget(500.0), DistributionPolicy.LEAST_EDP)
    assert shares.limit_watts == pytest.approx([100.0, 400.0], abs=2.0)


def _throughput(table: PowerGroups, limits: np.ndarray[Any, Any]) -> float:
    return float((table.weight / time_ratios(table, limits[:, None])[:, 0]).sum())


@given(st.integers(0, 10**6))
@examples(60)
def test_least_edp_has_more_throughput_than_the_policies_that_ignore_curves(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 30
    times = np.sort(1 + random.exponential(0.4, (count, LEVELS)), axis=1)[:, ::-1]
    times = times - times[:, -1:] + 1.0
    table = groups(count, time_ratio=times, weight=random.choice([1.0, 4.0], count))
    limits = budget(random.uniform(120.0, 390.0) * count, count=count)
    done = {policy: _throughput(table, distribute(table, limits, policy).limit_watts) for policy in POLICIES}
    best = done.pop(DistributionPolicy.LEAST_EDP)
    assert best >= max(done.values()) * 0.99


def test_a_tighter_budget_within_another_is_settled_first() -> None:
    members = [[1, 1, 1, 1], [1, 1, 0, 0]]
    shares = distribute(groups(4), budget(1100.0, 300.0, members=members), DistributionPolicy.PROPORTIONAL)
    assert shares.limit_watts == pytest.approx([150.0, 150.0, 400.0, 400.0], abs=0.01)
    assert shares.binding.tolist()[:2] == [1, 1]


def test_an_account_across_two_partitions_keeps_all_three_budgets() -> None:
    members = [[4, 4, 0, 0], [0, 0, 4, 4], [0, 4, 4, 0]]
    budgets = budget(2400.0, 2400.0, 1600.0, members=members)
    table = groups(4, devices=np.full(4, 4))
    shares = distribute(table, budgets, DistributionPolicy.EQUAL)
    assert shares.limit_watts == pytest.approx([400.0, 200.0, 200.0, 400.0], abs=0.01)


def test_fixed_power_above_the_limit_is_reported_and_floors_are_kept() -> None:
    table = groups(2, floor_watts=[150.0, 100.0])
    shares = distribute(table, budget(300.0, fixed=400.0), DistributionPolicy.LEAST_EDP)
    assert shares.limit_watts.tolist() == [150.0, 100.0]
    assert shares.shortfall_watts == pytest.approx([350.0])


@pytest.mark.parametrize("limit", [np.nan, -np.inf, -1.0])
def test_a_limit_that_is_no_power_is_no_permission(limit: float) -> None:
    shares = distribute(groups(2), budget(limit), DistributionPolicy.LEAST_EDP)
    assert shares.limit_watts.tolist() == [100.0, 100.0]


def test_without_a_finite_budget_no_limit_is_needed() -> None:
    shares = distribute(groups(2, draw_watts=[300.0, 200.0]), budget(np.inf), DistributionPolicy.EQUAL)
    assert np.isnan(shares.limit_watts).all()
    assert shares.binding.tolist() == [-1, -1]
    assert shares.committed_watts.tolist() == [500.0]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_ten_thousand_groups_keep_overlapping_budgets(policy: DistributionPolicy) -> None:
    random = np.random.default_rng(1)
    count = 10_000
    table = groups(count, devices=random.integers(1, 9, count), draw_watts=random.uniform(150, 400, count))
    account = random.integers(0, 20, count)
    partition = random.integers(0, 4, count)
    members = np.concatenate(
        [
            table.devices[None, :],
            np.where(np.arange(20)[:, None] == account, table.devices, 0),
            np.where(np.arange(4)[:, None] == partition, table.devices, 0),
        ]
    )
    budgets = BudgetColumns(members @ table.draw_watts * random.uniform(0.6, 0.9, 25), np.zeros(25), members)
    shares = distribute(table, budgets, policy)
    assert np.all(used_watts(table, budgets, shares) <= budgets.limit_watts + 1e-3)
    assert not shares.shortfall_watts.any()
