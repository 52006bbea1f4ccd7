"""Tests of the deferral policies.

No job may be planned to start later than allowed, and no more jobs may run than the capacity permits.
The plans of the policies that search for the best starts must equal the result of an exhaustive
search.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy import deferral
from slurm_energy.deferral import (
    Capacity,
    DeferralOptions,
    DeferralQueue,
    DeferralReason,
    assignment,
    registry,
)
from slurm_energy.deferral.planning import NONE, start_table
from slurm_energy.deferral.slot_fit import SlotFit
from slurm_energy.deferral.window_costs import cost_curve
from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.scheduling.queue import Queue, alternatives, jobs
from slurm_energy.signals import SignalColumns, SignalForecast, SignalName

SLOT = 900.0
PLAIN = DeferralOptions(best_share=0.0, uncertainty_weight=0.0, min_saving=0.0, solver_limit_s=20.0)


def signals(prices: list[float], step_s: float = SLOT, deviation: float = 0.0) -> SignalColumns:
    column = SignalForecast(np.array(prices), np.full(len(prices), deviation))
    return SignalColumns(0.0, step_s, price_per_kwh=column, carbon_g_per_kwh=column)


def queue_of(
    rows: list[tuple[float, float, float, float]],
    prices: list[float],
    capacity: Capacity | None = None,
    now_s: float = 0.0,
    **more: SignalColumns,
) -> DeferralQueue:
    """Return a queue of deferrable jobs for tests.

    Each row states the latest start, the run time, the watts, and the number of units (such as GPUs) of one
    job.
    """
    latest, time_s, watts, units = (np.array(column, float) for column in zip(*rows, strict=True))
    count = len(rows)
    return DeferralQueue(
        now_s=now_s,
        job_id=np.arange(1, count + 1),
        earliest_s=np.full(count, now_s),
        latest_start_s=latest,
        time_s=time_s,
        power_watts=watts,
        units=units,
        hardware=np.zeros(count, np.int64),
        checkpointable=np.zeros(count, np.bool_),
        signals=more.get("signals", signals(prices)),
        capacity=capacity,
    )


def room(units: float, slots: int = 1) -> Capacity:
    return Capacity(0.0, SLOT, np.full((1, slots), units))


prices_lists = st.lists(st.integers(-50, 300).map(lambda price: price / 1000), min_size=3, max_size=30)
job_rows = st.tuples(
    st.one_of(st.just(math.nan), st.integers(-10, 40).map(lambda slots: slots * 450.0)),
    st.integers(1, 40).map(lambda parts: parts * 225.0),
    st.integers(1, 400).map(float),
    st.integers(1, 4).map(float),
)


@examples(40)
@given(
    st.sampled_from(["off", "cheapest", "cleanest", "cedla"]),
    st.lists(job_rows, min_size=1, max_size=12),
    prices_lists,
    st.sampled_from([None, 2.0, 5.0]),
    st.floats(0, 1),
    st.booleans(),
    st.floats(0, 2000),
)
def test_no_plan_exceeds_the_latest_start_or_the_capacity(
    policy, rows, prices, units, best_share, soft, now_s
):
    capacity = None if units is None else room(units)
    options = DeferralOptions(best_share=best_share, soft=soft, solver_limit_s=1.0)
    queue = queue_of(rows, prices, capacity, now_s)
    plan = deferral.plan(policy, queue, options)
    assert plan.job_id.tolist() == queue.job_id.tolist()
    assert np.all(plan.start_s >= now_s)
    assert np.all(plan.start_s <= np.where(queue.deferrable, queue.latest_start_s, now_s))
    assert np.all(plan.start_s[~queue.deferrable] == now_s)
    waiting = plan.start_s > now_s
    assert np.array_equal(waiting, plan.deferred)
    if units is not None:
        for start in plan.start_s[waiting]:
            running = waiting & (plan.start_s <= start) & (plan.start_s + queue.time_s > start + 1e-3)
            assert np.sum(queue.units[running]) <= units + 1e-6


@examples(40)
@given(st.lists(job_rows, min_size=1, max_size=5), prices_lists, st.integers(0, 1700))
def test_cheapest_equals_the_best_of_all_windows(rows, prices, now_s):
    queue = queue_of(rows, prices, now_s=float(now_s))
    plan = deferral.plan("cheapest", queue, PLAIN)
    tail = float(np.mean(prices))

    def cost(job: int, start: float) -> float:
        seconds = np.arange(0, queue.time_s[job]) + start + 0.5
        row = (seconds // SLOT).astype(int)
        price = np.where(row < len(prices), np.array(prices)[np.minimum(row, len(prices) - 1)], tail)
        return float(np.sum(price)) * queue.power_watts[job] / 3.6e6

    for job in np.flatnonzero(queue.deferrable):
        grid = [now_s, *(k * SLOT for k in range(60) if now_s < k * SLOT <= queue.latest_start_s[job])]
        best = min(cost(job, start) for start in grid)
        scale = 1e-9 + abs(queue.power_watts[job] * queue.time_s[job] / 3.6e6)
        assert cost(job, plan.start_s[job]) == pytest.approx(best, abs=1e-6 * scale)
        assert plan.cost[job] == pytest.approx(best, abs=1e-6 * scale)
        assert plan.expected_saving[job] == pytest.approx(cost(job, now_s) - best, abs=2e-6 * scale)


small_jobs = st.tuples(
    st.integers(1, 4).map(lambda slots: slots * SLOT),
    st.integers(1, 3).map(lambda slots: slots * SLOT),
    st.integers(1, 50).map(float),
    st.integers(1, 3).map(float),
)


@examples(40)
@given(
    st.lists(small_jobs, min_size=2, max_size=4),
    st.lists(st.integers(-5, 30).map(float), min_size=8, max_size=8),
    st.integers(2, 4),
)
def test_cedla_equals_exhaustive_enumeration(rows, prices, units):
    queue = queue_of(rows, prices, room(units))
    curve = cost_curve(queue.signals, SignalName.PRICE)
    assert curve is not None
    table = start_table(queue, curve, PLAIN)
    fit = SlotFit(table.starts_s, queue.capacity)
    score = table.score(PLAIN)
    slots = assignment.assign(queue, table, score, fit, PLAIN)
    options = [[NONE, *range(int(count))] for count in table.count]
    best = math.inf
    for choice in itertools.product(*options):
        used = np.zeros(16)
        for job, slot in enumerate(choice):
            if slot != NONE:
                used[slot : slot + int(queue.time_s[job] / SLOT)] += queue.units[job]
        # Times after the last planned slot share its room.
        last = len(table.starts_s) - 1
        if np.max(used[:last], initial=0) <= units and _tail_use(queue, choice, last) <= units:
            best = min(best, assignment.total_score(score, np.array(choice)))
    scale = assignment.penalty(score)
    assert assignment.total_score(score, slots) == pytest.approx(best, abs=1e-6 * scale)
    rough = assignment.heuristic(queue, table, score, fit)
    assert assignment.total_score(score, rough) >= best - 1e-6 * scale


def _tail_use(queue: DeferralQueue, choice: tuple[int, ...], last: int) -> float:
    ends = [(slot + queue.time_s[job] / SLOT, job) for job, slot in enumerate(choice) if slot != NONE]
    return sum(queue.units[job] for end, job in ends if end > last)


def test_cedla_without_scipy_uses_the_heuristic(monkeypatch):
    monkeypatch.setattr(assignment, "solve", lambda *_: None)
    queue = queue_of([(3600, 900, 100, 1)] * 3, [0.3, 0.1, 0.2, 0.25, 0.4], room(1))
    plan = deferral.plan("cedla", queue, PLAIN)
    assert sorted(plan.start_s.tolist()) == [900, 1800, 2700]


def test_hard_constraints_reject_and_soft_ones_release():
    rows = [(900.0, 900.0, 100.0, 1.0)] * 3
    queue = queue_of(rows, [0.3, 0.1, 0.2], room(1))
    hard = deferral.plan("cedla", queue, DeferralOptions(soft=False))
    assert hard.rejected.sum() == 1
    soft = deferral.plan("cedla", queue, DeferralOptions())
    assert not soft.rejected.any()
    assert (soft.reason == DeferralReason.NO_ROOM).sum() == 1
    assert soft.start_s[soft.reason == DeferralReason.NO_ROOM] == 0


@examples(40)
@given(
    st.lists(small_jobs, min_size=1, max_size=8),
    st.lists(st.integers(1, 30).map(float), min_size=10, max_size=10),
    st.integers(2, 4),
    st.sampled_from(["cheapest", "cedla"]),
    st.randoms(use_true_random=False),
)
def test_a_new_plan_takes_no_room_from_an_earlier_one(rows, prices, units, name, random):
    rows = [row for row in rows if row[3] <= units]
    if not rows:
        return
    queue = queue_of(rows, prices, room(units))
    first = deferral.plan(name, queue, PLAIN)
    planned = first.reason != DeferralReason.NO_ROOM
    random.shuffle(prices)
    later = replace(queue, signals=signals(prices), planned_s=np.where(planned, first.start_s, np.nan))
    second = deferral.plan(name, later, PLAIN)
    assert np.all(second.reason[planned] != DeferralReason.NO_ROOM)


def test_urgent_jobs_take_their_units_first():
    rows = [(math.nan, 1800.0, 100.0, 1.0), (5400.0, 900.0, 100.0, 1.0)]
    plan = deferral.plan("cheapest", queue_of(rows, [0.3, 0.1, 0.2, 0.3], room(1)), PLAIN)
    assert plan.start_s.tolist() == [0, 1800]


def test_jobs_keep_the_power_budget():
    budget = Capacity(0.0, SLOT, np.full((1, 1), 100.0), np.array([150.0]))
    plan = deferral.plan("cheapest", queue_of([(2700, 900, 100, 1)] * 2, [0.3, 0.1, 0.2, 0.3], budget), PLAIN)
    assert sorted(plan.start_s.tolist()) == [900, 1800]


def test_an_uncertain_or_small_advantage_defers_no_job():
    rows = [(2700.0, 900.0, 100.0, 1.0)]
    near = queue_of(rows, [0.30, 0.299, 0.30])
    assert deferral.plan("cheapest", near, DeferralOptions()).reason.tolist() == [DeferralReason.GOOD_NOW]
    column = SignalForecast(np.array([0.3, 0.2, 0.3]), np.array([0.0, 0.15, 0.15]))
    uncertain = queue_of(rows, [], signals=SignalColumns(0.0, SLOT, price_per_kwh=column))
    bold = DeferralOptions(uncertainty_weight=0.0)
    careful = DeferralOptions(uncertainty_weight=1.0)
    assert deferral.plan("cheapest", uncertain, bold).start_s.tolist() == [900]
    assert deferral.plan("cheapest", uncertain, careful).start_s.tolist() == [0]


def test_best_share_starts_a_job_that_is_cheap_enough_now():
    queue = queue_of([(8100.0, 900.0, 100.0, 1.0)], [0.2, 0.1, *([0.3] * 8)])
    assert deferral.plan("cheapest", queue, DeferralOptions(best_share=0.1)).start_s.tolist() == [0]
    assert deferral.plan("cheapest", queue, DeferralOptions(best_share=0.0)).start_s.tolist() == [900]


def test_warm_hours_cost_more_with_the_pue():
    price, warm = (
        SignalForecast(np.full(3, 0.2), np.zeros(3)),
        SignalForecast(np.array([35.0, 5, 35]), np.zeros(3)),
    )
    columns = SignalColumns(0.0, SLOT, price_per_kwh=price, outside_celsius=warm)
    plan = deferral.plan("cheapest", queue_of([(1800, 900, 100, 1)], [], signals=columns), PLAIN)
    assert plan.start_s.tolist() == [900]


def test_without_forecast_jobs_start_at_once():
    column = SignalForecast(np.full(3, np.nan), np.full(3, np.nan))
    queue = queue_of([(1800, 900, 100, 1)], [], signals=SignalColumns(0.0, SLOT, price_per_kwh=column))
    plan = deferral.plan("cheapest", queue, PLAIN)
    assert plan.start_s.tolist() == [0]
    assert plan.reason.tolist() == [DeferralReason.NO_FORECAST]


def test_a_queue_of_a_scheduling_policy_becomes_a_queue_of_deferral():
    table = alternatives(
        np.array([0, 2, 3]), np.array([10.0, 20, 30]), np.array([5.0, 6, 7]), gpus=np.array([1, 2, 3])
    )
    pending = jobs(np.array([7, 8]), np.zeros(2), latest_start_s=np.array([np.nan, 50.0]))
    queue = deferral.deferral_queue(
        Queue(1.0, pending, table, signals=signals([0.1, 0.2])), np.array([1, -1])
    )
    assert queue.time_s.tolist() == [20, 30]
    assert queue.units.tolist() == [2, 3]
    assert queue.deferrable.tolist() == [False, True]


def test_latest_start_is_the_earlier_of_slack_and_deadline():
    nan = np.nan
    latest = deferral.latest_start_s(
        *([0, 0, 0, 10, 0, 0], [100, nan, 100, nan, 0, 100]),
        *([nan, 90, 90, nan, nan, 90], [nan, 30, 30, 30, nan, nan], 80),
    )
    assert latest[:3].tolist() == [80, 60, 60]
    assert np.isnan(latest[3:]).all()
    with pytest.raises(UsageError, match="slack: is negative"):
        deferral.latest_start_s([0], [-1], [nan], [nan])


def test_an_unknown_policy_names_the_nearest():
    with pytest.raises(NotFoundError) as error:
        deferral.policy("cheapst")
    assert "cheapest" in str(error.value)


def test_a_policy_of_a_site_may_not_exceed_the_latest_start(monkeypatch):
    registry.names()  # loads the built-in policies
    monkeypatch.setattr(registry, "_policies", dict(registry._policies))

    @deferral.register("test-late")
    def late(queue, options):
        """Deferral policy that starts each job one second after its latest permitted start."""
        plan = deferral.plan("off", queue, options)
        plan.start_s[:] = queue.latest_start_s + 1
        return plan

    with pytest.raises(UsageError, match="later than its latest start"):
        deferral.plan("test-late", queue_of([(1800, 900, 100, 1)], [0.1]), PLAIN)


@pytest.mark.parametrize("name", ["cheapest", "cleanest", "cedla"])
def test_deferred_jobs_leave_room_for_later_arrivals(name):
    prices = [0.3, 0.3, 0.1, 0.2, 0.3, 0.3]
    free = Capacity(0.0, SLOT, np.full((1, 6), 4.0), None, np.array([[0.0, 0.0, 3.0, 1.0, 0.0, 0.0]]))
    queue = queue_of([(4 * SLOT, SLOT, 100.0, 2.0)] * 2, prices, free)
    plan = deferral.plan(name, queue, PLAIN)
    # The cheapest slot has one unit left, the next one room for one of the jobs.
    assert sorted(plan.start_s.tolist()) == [0.0, 3 * SLOT]


def test_a_job_that_starts_now_needs_no_room_for_later_arrivals():
    free = Capacity(0.0, SLOT, np.full((1, 4), 4.0), None, np.full((1, 4), 4.0))
    queue = queue_of([(3 * SLOT, SLOT, 100.0, 2.0)], [0.1, 0.2, 0.2, 0.2], free)
    plan = deferral.plan("cheapest", queue, PLAIN)
    assert plan.reason[0] == DeferralReason.GOOD_NOW


@pytest.mark.parametrize(("margin_slots", "start_slot"), [(0, 8), (2, 6), (6, 2), (100, 2)])
def test_planned_starts_leave_a_margin_of_at_most_three_quarters_of_the_slack(margin_slots, start_slot):
    prices = [0.3 - 0.01 * slot for slot in range(12)]
    queue = queue_of([(8 * SLOT, SLOT, 100.0, 1.0)], prices)
    queue = replace(queue, slack_s=np.array([8 * SLOT]))
    options = replace(PLAIN, start_margin_s=margin_slots * SLOT)
    assert deferral.plan("cheapest", queue, options).start_s[0] == start_slot * SLOT


@pytest.mark.parametrize(
    ("units", "release_slots", "max_slots", "start_slot"),
    [(1, 1.0, 5, 8), (3, 1.0, 5, 6), (3, 1.0, 0, 8), (3, 2.0, 1, 6), (3, 100.0, 5, 2), (1, math.nan, 5, 3)],
)
def test_the_margin_is_the_time_in_which_a_full_cluster_releases_the_missing_units(
    units, release_slots, max_slots, start_slot
):
    prices = [0.3 - 0.01 * slot for slot in range(12)]
    free = replace(
        room(4.0, 12), high_reserve=np.full((1, 12), 3.0), release_s=np.array([release_slots * SLOT])
    )
    queue = queue_of([(8 * SLOT, SLOT, 100.0, float(units))], prices, free)
    queue = replace(queue, slack_s=np.array([8 * SLOT]))
    options = replace(PLAIN, start_margin_s=max_slots * SLOT)
    assert deferral.plan("cheapest", queue, options).start_s[0] == start_slot * SLOT
