"""Tests of power saving: the rule that powers nodes down, the forecast and the upper bound.

The upper bound is the saving that is possible if all future job starts are known.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.power_saving.demand_forecast import DemandForecast, DemandHistory, horizons, known_change
from slurm_energy.power_saving.expected_starts import KnownJobs, expected_changes
from slurm_energy.power_saving.node_energy import NodeEnergy
from slurm_energy.power_saving.offline_bound import clairvoyant_saving_joules
from slurm_energy.power_saving.power_down_rule import (
    KeepReason,
    NodeActivity,
    PoolNodes,
    PoolPlan,
    PowerSavingRules,
    forecast_points,
    plan_pool,
    rules_without_history,
)

ENERGY = NodeEnergy(150.0, 10.0, 180.0, 200.0, 30.0, 150.0)
RULES = PowerSavingRules()

activities = st.lists(st.sampled_from(list(NodeActivity)), min_size=1, max_size=12)


def pool(activity: list[NodeActivity], protected: list[bool] | None = None, idle_s: float = 1e6) -> PoolNodes:
    count = len(activity)
    return PoolNodes(
        np.array([int(one) for one in activity]),
        np.array(protected or [False] * count, np.bool_),
        np.full(count, idle_s),
        np.full(count, 1e6),
    )


def quiet(demand: float = 0.0, energy: NodeEnergy = ENERGY) -> tuple[DemandForecast, np.ndarray]:
    """Return an example of a quiet cluster: a forecast in which no job arrives, and a known demand.

    Args:
        demand: number of nodes that are needed now.
        energy: power and durations of the nodes.
    """
    horizon_s = horizons(forecast_points(energy, RULES))
    forecast = DemandForecast(horizon_s, np.zeros((1, len(horizon_s))), np.ones(1))
    return forecast, known_change(horizon_s, np.zeros(1), np.array([demand]))


@st.composite
def forecasts(draw: st.DrawFn) -> DemandForecast:
    horizon_s = horizons(forecast_points(ENERGY, RULES))
    courses = draw(st.integers(1, 5))
    values = draw(
        st.lists(st.floats(0, 9), min_size=courses * len(horizon_s), max_size=courses * len(horizon_s))
    )
    weights = np.array(draw(st.lists(st.floats(0.1, 1), min_size=courses, max_size=courses)))
    peaks = np.array(values).reshape(courses, len(horizon_s))
    return DemandForecast(horizon_s, peaks, weights / weights.sum())


@given(activities, st.data(), forecasts(), st.floats(-5, 5), st.integers(0, 6))
def test_rule_changes_only_nodes_that_it_may_change(
    activity: list[NodeActivity], data: st.DataObject, forecast: DemandForecast, now: float, reserve: int
) -> None:
    protected = data.draw(st.lists(st.booleans(), min_size=len(activity), max_size=len(activity)))
    nodes = pool(activity, protected)
    known = known_change(forecast.horizon_s, np.zeros(1), np.array([now]))
    limits = {"max_down": data.draw(st.integers(0, 3)), "max_up": data.draw(st.integers(0, 3))}
    plan = plan_pool(nodes, ENERGY, forecast, known, RULES, reserve=reserve, **limits)
    assert all(activity[row] is NodeActivity.IDLE and not protected[row] for row in plan.down)
    assert all(activity[row] is NodeActivity.OFF and not protected[row] for row in plan.up)
    assert len(plan.down) == len(set(plan.down)) <= limits["max_down"]
    assert len(plan.up) == len(set(plan.up)) <= limits["max_up"]
    assert not (plan.down and plan.up)
    assert len(plan.down_saving_joules) == len(plan.down)
    assert all(saving >= RULES.min_saving * ENERGY.cycle_joules for saving in plan.down_saving_joules)
    usable = [one for one, locked in zip(activity, protected, strict=True) if not locked]
    warm = usable.count(NodeActivity.IDLE) + usable.count(NodeActivity.BOOTING)
    # What known jobs need now, and the reserve, stays on.
    assert not plan.down or warm - len(plan.down) >= reserve + max(0.0, now)
    assert sum(plan.kept.values()) + len(plan.down) >= activity.count(NodeActivity.IDLE)


@given(activities, forecasts(), st.integers(0, 4))
def test_rule_does_not_flap_while_the_forecast_stays(
    activity: list[NodeActivity], forecast: DemandForecast, reserve: int
) -> None:
    known = np.zeros(len(forecast.horizon_s))

    def plan(state: list[NodeActivity]) -> PoolPlan:
        return plan_pool(pool(state), ENERGY, forecast, known, RULES, reserve=reserve)

    first = plan(activity)
    for row in first.down:
        activity[row] = NodeActivity.OFF
    for row in first.up:
        activity[row] = NodeActivity.IDLE
    second = plan(activity)
    assert not (first.down and second.up)
    assert not (first.up and second.down)


def test_all_nodes_go_down_if_no_job_is_expected() -> None:
    forecast, known = quiet()
    plan = plan_pool(pool([NodeActivity.IDLE] * 5), ENERGY, forecast, known, RULES)
    assert sorted(plan.down) == [0, 1, 2, 3, 4]
    longest_s = float(forecast.horizon_s[-1])
    assert plan.saving_joules == pytest.approx(5 * ENERGY.saving_joules(longest_s))


def test_reserve_and_pending_jobs_stay_on_and_are_booted() -> None:
    forecast, known = quiet(2.0)
    idle = plan_pool(pool([NodeActivity.IDLE] * 5), ENERGY, forecast, known, RULES, reserve=1)
    assert len(idle.down) == 2
    assert idle.kept[KeepReason.RESERVE] + idle.kept.get(KeepReason.EXPECTED_DEMAND, 0) == 3
    off = plan_pool(pool([NodeActivity.OFF] * 5), ENERGY, forecast, known, RULES, reserve=1)
    assert len(off.up) == 3


def test_nodes_boot_ahead_of_a_known_start_only_within_boot_time() -> None:
    forecast, _ = quiet()
    horizon_s = forecast.horizon_s
    nodes = pool([NodeActivity.OFF] * 3)
    soon = known_change(horizon_s, np.array([ENERGY.boot_s]), np.array([2.0]))
    later = known_change(horizon_s, np.array([3 * 3600.0]), np.array([2.0]))
    assert len(plan_pool(nodes, ENERGY, forecast, soon, RULES).up) == 2
    assert not plan_pool(nodes, ENERGY, forecast, later, RULES).up


def test_free_shares_of_busy_nodes_serve_jobs_first() -> None:
    forecast, known = quiet(0.5)
    nodes = dataclasses.replace(pool([NodeActivity.IDLE] * 2), free_share=0.5)
    assert len(plan_pool(nodes, ENERGY, forecast, known, RULES).down) == 2


def test_node_stays_on_until_it_was_idle_and_on_long_enough() -> None:
    forecast, known = quiet()
    fresh = plan_pool(pool([NodeActivity.IDLE], idle_s=1.0), ENERGY, forecast, known, RULES)
    assert not fresh.down
    assert fresh.kept == {KeepReason.MIN_IDLE: 1}
    unknown = plan_pool(pool([NodeActivity.IDLE], idle_s=float("nan")), ENERGY, forecast, known, RULES)
    assert not unknown.down


def test_powering_down_never_pays_where_an_idle_node_draws_no_more() -> None:
    energy = NodeEnergy(10.0, 10.0, 60.0, 100.0)
    forecast, known = quiet(energy=energy)
    plan = plan_pool(pool([NodeActivity.IDLE] * 3), energy, forecast, known, RULES)
    assert not plan.down
    assert plan.kept == {KeepReason.NO_SAVING: 3}


def test_short_history_requires_the_break_even_time() -> None:
    history = DemandHistory(horizons(forecast_points(ENERGY, RULES)))
    assert rules_without_history(RULES, ENERGY, history).min_idle_s == ENERGY.break_even_s
    history.extend(0.0, 3 * 86400.0, np.zeros(0), np.zeros(0), np.zeros(0))
    assert rules_without_history(RULES, ENERGY, history) == RULES


def test_history_learns_the_hour_of_the_day() -> None:
    horizon_s = horizons(forecast_points(ENERGY, RULES))
    history = DemandHistory(horizon_s)
    nine = np.arange(14) * 86400.0 + 9 * 3600.0
    history.extend(0.0, 14 * 86400.0, nine, np.full(14, 1800.0), np.full(14, 3.0))
    known = np.zeros(len(horizon_s))
    # On Thursday 15 January 1970 at 08:45 three nodes are needed within the hour, at 20:00 none.
    hour = int(np.searchsorted(horizon_s, 3600.0))
    morning = history.forecast(14 * 86400.0 + 8.75 * 3600.0).probability(known, np.array([2.0]))
    evening = history.forecast(14 * 86400.0 + 20 * 3600.0).probability(known, np.array([2.0]))
    assert morning[0, hour] > 0.3
    assert evening[0, hour] < 0.05


def test_parts_of_the_history_give_the_same_courses_as_the_whole() -> None:
    horizon_s = horizons(forecast_points(ENERGY, RULES))
    random = np.random.default_rng(1)
    submit_s = np.sort(random.uniform(0, 5 * 86400, 500))
    time_s, nodes = random.uniform(1, 9000, 500), random.integers(1, 5, 500).astype(float)
    whole, parts = DemandHistory(horizon_s), DemandHistory(horizon_s)
    whole.extend(0.0, 5 * 86400.0, submit_s, time_s, nodes)
    for until_s in np.arange(1, 11) * 43200.0:
        rows = submit_s <= until_s
        parts.extend(0.0, float(until_s), submit_s[rows], time_s[rows], nodes[rows])
    one, other = whole.forecast(0.0), parts.forecast(0.0)
    assert np.array_equal(one.peaks, other.peaks)


@given(st.lists(st.tuples(st.floats(0, 2e4), st.floats(-4, 4)), max_size=12))
def test_known_change_is_the_highest_level_in_each_bin(changes: list[tuple[float, float]]) -> None:
    horizon_s = horizons([])
    got = known_change(horizon_s, np.array([t for t, _ in changes]), np.array([n for _, n in changes]))

    def level(time_s: float) -> float:
        return sum(nodes for at_s, nodes in changes if at_s <= time_s)

    edges = [0.0, *horizon_s.tolist()]
    for place, (begin_s, end_s) in enumerate(itertools.pairwise(edges)):
        inside = [level(at_s) for at_s, _ in changes if begin_s < at_s <= end_s]
        assert got[place] >= max([level(begin_s), *inside]) - 1e-9


def test_pending_jobs_start_when_running_ones_end() -> None:
    jobs = KnownJobs([100.0, -5.0], [2.0, 1.0], [3.0, 9.0], [50.0, 1.0], [0.0, 0.0])
    times_s, nodes = expected_changes(jobs, free_nodes=0.0)
    changes = sorted(zip(times_s.tolist(), nodes.tolist(), strict=True))
    assert changes == [(100.0, -2.0), (100.0, 3.0), (150.0, -3.0)]


def test_deferred_job_needs_nodes_at_its_start() -> None:
    jobs = KnownJobs([], [], [2.0, 1.0], [50.0, 10.0], [600.0, 0.0])
    times_s, nodes = expected_changes(jobs, free_nodes=2.0)
    assert (600.0, 2.0) in zip(times_s.tolist(), nodes.tolist(), strict=True)
    assert (0.0, 1.0) in zip(times_s.tolist(), nodes.tolist(), strict=True)


def test_break_even_time_is_the_gap_without_saving() -> None:
    assert ENERGY.saving_joules(ENERGY.break_even_s) == pytest.approx(0.0)
    assert NodeEnergy(5.0, 5.0).break_even_s == float("inf")


@given(st.floats(1, 1e5), st.floats(1, 1e5))
def test_bound_uses_a_gap_only_if_it_pays(gap_s: float, busy_s: float) -> None:
    times_s = np.array([0.0, busy_s, busy_s + gap_s])
    got = clairvoyant_saving_joules(
        ENERGY, times_s, np.array([1.0, 0.0, 1.0]), nodes=1, end_s=2 * busy_s + gap_s
    )
    assert got >= 0
    if gap_s >= ENERGY.shutdown_s + ENERGY.boot_s:
        off_s = gap_s - ENERGY.shutdown_s - ENERGY.boot_s
        spent = 30.0 * 150.0 + 180.0 * 200.0 + off_s * 10.0
        assert got == pytest.approx(max(0.0, 150.0 * gap_s - spent))
    else:
        assert got == 0
