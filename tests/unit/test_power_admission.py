"""Tests of how a power budget admits jobs and reacts to nodes.

The tests check the admission of jobs under budgets, the safe limits of nodes, the detection of nodes
with implausible reports, and the sentences that explain a decision.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from budget_examples import budget, groups
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.budget.admission import admit_in_order, start_limits
from slurm_energy.budget.ceilings import CeilingBudget
from slurm_energy.budget.distribution import distribute
from slurm_energy.budget.explanation import DecisionExplainer
from slurm_energy.budget.group_response import group_limits, time_ratios
from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.budget.messages import DeviceReport, NodePoll
from slurm_energy.budget.node_trust import NodeTrust
from slurm_energy.budget.power_groups import PowerGroups
from slurm_energy.budget.safe_limits import safe_limits
from slurm_energy.budget.work_price import PRICES, economic_power, headroom_at_prices

IDLE_WATTS = 40.0


def idle(count: int) -> np.ndarray:
    return np.full(count, IDLE_WATTS)


def added_watts(pending: PowerGroups) -> np.ndarray:
    return economic_power(pending, idle(pending.count)).added_watts


def some(table: PowerGroups, rows: slice) -> PowerGroups:
    columns = {f.name: getattr(table, f.name)[rows] for f in dataclasses.fields(table)}
    return dataclasses.replace(table, **columns)


def test_without_contention_a_job_starts_at_its_expected_power() -> None:
    pending = groups(1, draw_watts=[350.0])
    free = np.array([1000.0])
    assert admit_in_order(added_watts(pending), np.ones((1, 1)), free).fits.all()
    economic = economic_power(pending, idle(1)).limit_watts
    limits = start_limits(group_limits(pending), economic, idle(1), np.ones((1, 1), np.int64), free)
    assert limits == pytest.approx([350.0])


def test_jobs_run_side_by_side_if_power_allows_and_one_after_another_otherwise() -> None:
    pending = groups(2, slowdown_limit=[0.1, 0.1])
    watts = added_watts(pending)
    both = admit_in_order(watts, np.ones((1, 2)), np.array([watts.sum()]))
    assert both.fits.tolist() == [True, True]
    one = admit_in_order(watts, np.ones((1, 2)), np.array([watts.sum() - 1]))
    assert one.fits.tolist() == [True, False]
    assert one.blocking.tolist() == [-1, 0]


def test_a_small_job_passes_a_large_one_unless_that_one_has_waited_too_long() -> None:
    watts, members, free = np.array([500.0, 100.0]), np.ones((1, 2)), np.array([200.0])
    assert admit_in_order(watts, members, free).fits.tolist() == [False, True]
    stops = np.array([True, False])
    assert admit_in_order(watts, members, free, stops_at=stops).fits.tolist() == [False, False]


def test_two_budgets_over_one_job_must_both_have_room() -> None:
    decision = admit_in_order(np.array([300.0]), np.array([[1.0], [0.5]]), np.array([400.0, 149.0]))
    assert (decision.fits[0], decision.blocking[0]) == (False, 1)


def with_speed(exponents: np.ndarray, **columns: object) -> PowerGroups:
    """Return groups of devices for tests, whose speed is a power function of their power limit.

    Speed and power are relative to their values without a limit. `exponents` has the exponent of each group.
    """
    count = len(exponents)
    draw_watts = np.asarray(columns.pop("draw_watts", np.full(count, 400.0)))
    levels = np.linspace(100.0, draw_watts, 7, axis=1)
    times = (draw_watts[:, None] / levels) ** exponents[:, None]
    return groups(count, level_watts=levels, time_ratio=times, draw_watts=draw_watts, **columns)


def test_the_economic_limit_yields_the_most_work_per_watt_above_idle() -> None:
    pending = with_speed(np.array([0.2, 0.6, 0.95]))
    limits = np.linspace(100.0, 400.0, 301)
    speeds = 1.0 / time_ratios(pending, np.tile(limits, (3, 1)))
    best = np.max((speeds - 0.1) / (limits - IDLE_WATTS), axis=1)
    economic = economic_power(pending, idle(3))
    speed = 1.0 / time_ratios(pending, economic.limit_watts[:, None])[:, 0]
    assert np.all((speed - 0.1) / economic.added_watts >= 0.97 * best)
    assert np.all(PRICES[economic.level] <= best)
    assert np.all(PRICES[economic.level + 1] > 0.9 * best)


def test_running_jobs_keep_the_power_that_yields_more_work_than_in_a_new_job() -> None:
    running = with_speed(np.array([0.1, 0.9]))
    headroom = headroom_at_prices(running, budget(1000.0))[0]
    assert np.all(np.diff(headroom) >= 0)
    assert headroom[0] == pytest.approx(200.0)
    assert headroom[-1] == pytest.approx(800.0)
    # The first job loses at most 0.1 * 400 ** -0.1 / 100 ** 0.9, the second at least 0.9 / 400 per watt.
    between = headroom[(PRICES > 8.8e-4) & (PRICES < 2.2e-3)]
    assert len(between)
    assert between == pytest.approx(500.0)


def test_running_jobs_make_room_down_to_their_slowdown_limits() -> None:
    running = groups(2, slowdown_limit=[0.2, np.nan])
    shares = distribute(running, budget(0.0), DistributionPolicy.LEAST_EDP)
    unlimited = headroom_at_prices(some(running, slice(1, 2)), budget(500.0, count=1))[0, -1]
    limited = headroom_at_prices(some(running, slice(0, 1)), budget(500.0, count=1))[0, -1]
    assert unlimited == pytest.approx(500.0 - shares.limit_watts[1])
    assert limited < unlimited


def throughput(table: PowerGroups, limit_watts: float) -> float:
    shares = distribute(table, budget(limit_watts, count=table.count), DistributionPolicy.LEAST_EDP)
    return float((table.weight / time_ratios(table, shares.limit_watts[:, None])[:, 0]).sum())


@given(st.integers(0, 10**6), st.integers(1, 6))
@examples(100)
def test_an_admitted_job_raises_the_throughput(seed: int, running: int) -> None:
    random = np.random.default_rng(seed)
    table = with_speed(
        random.uniform(0.05, 0.95, running + 1),
        draw_watts=random.uniform(150, 400, running + 1),
        weight=np.append(random.uniform(1, 8, running), random.uniform(0.1, 1)),
    )
    limit = random.uniform(110.0, 400.0) * (running + 1)
    before = some(table, slice(0, running))
    economic = economic_power(some(table, slice(running, None)), idle(1))
    headroom = headroom_at_prices(before, budget(limit, count=running, fixed=IDLE_WATTS))[0]
    if economic.added_watts[0] <= headroom[economic.level[0]]:
        assert throughput(table, limit) > throughput(before, limit - IDLE_WATTS)


@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(1, 3))
@examples(100)
def test_an_admitted_job_keeps_its_slowdown_limit_under_the_budget(
    seed: int, running: int, news: int
) -> None:
    """A job that is admitted with a slowdown limit can keep this limit after it has started.

    The admission computes the power that the job needs. The distribution of the budget after the start must
    give the job this power.
    """
    random = np.random.default_rng(seed)
    count = running + news
    table = groups(
        count, slowdown_limit=random.uniform(0.02, 0.5, count), draw_watts=random.uniform(150, 400, count)
    )
    fixed_watts = news * IDLE_WATTS
    limit = random.uniform(200.0, 400.0) * count
    before, pending = some(table, slice(0, running)), some(table, slice(running, None))
    free = headroom_at_prices(before, budget(limit, count=running, fixed=fixed_watts))[:, -1]
    decision = admit_in_order(added_watts(pending), np.ones((1, news)), free)
    if not decision.fits.all() or free[0] < 0:
        return
    shares = distribute(table, budget(limit, count=count), DistributionPolicy.LEAST_EDP)
    assert not shares.shortfall_watts.any()
    assert shares.keeps_slowdown.all()


def test_start_limits_stay_within_the_headroom() -> None:
    levels = np.tile(np.linspace(100.0, 400.0, 4), (2, 1))
    pending = groups(
        2, job_id=[1, 1], devices=[2, 1], level_watts=levels, time_ratio=(400.0 / levels) ** 0.25
    )
    members = np.array([[2, 1]])
    economic = economic_power(pending, idle(2))
    headroom = economic.added_watts.sum(keepdims=True) + 10.0
    limits = start_limits(group_limits(pending), economic.limit_watts, idle(2), members, headroom)
    assert float((members @ (limits - IDLE_WATTS))[0]) == pytest.approx(headroom[0])
    assert np.all(limits >= economic.limit_watts - 1e-9)


@given(
    st.lists(st.tuples(st.floats(0, 300), st.floats(0, 400)), min_size=1, max_size=10),
    st.lists(st.floats(-100, 4000), max_size=3),
)
@examples(100)
def test_safe_limits_fit_the_lowest_limit_or_are_minima(
    rows: list[tuple[float, float]], limits: list[float]
) -> None:
    low, more = np.array(rows).T
    ceiling = low + more
    budgets = [CeilingBudget(np.arange(len(rows))[index:], watts) for index, watts in enumerate(limits)]
    safe = safe_limits(low, ceiling, budgets)
    assert np.all((safe >= low - 1e-9) & (safe <= ceiling + 1e-9))
    for item in budgets:
        lowest = float(low[item.rows].sum())
        assert float(safe[item.rows].sum()) <= max(lowest, item.available_watts) + 1e-6
    if not limits:
        assert safe == pytest.approx(ceiling)


def poll(watts: float | None, *, ceiling: float | None = 200.0, node_watts: float | None = None) -> NodePoll:
    limit = None if ceiling is None else ceiling
    device = DeviceReport("gpu0", "kind", 100.0, 400.0, limit, watts, (1,), ceiling)
    return NodePoll("n1", "boot", 1, (device,), node_watts, None)


def observe(trust: NodeTrust, report: NodePoll, start_s: float, end_s: float) -> None:
    for second in range(int(start_s), int(end_s)):
        trust.observe(report, float(second))


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (poll(0.0), "gpu0 reports 0 W"),
        (poll(1900.0), "gpu0 reports 1900 W, its maximum limit is 400 W"),
        (poll(300.0), "gpu0 draws 300 W at a ceiling of 200 W"),
        (poll(150.0, node_watts=0.0), "the node reports 0 W"),
        (poll(190.0, node_watts=20.0), "the node reports 20 W, its devices together 190 W"),
        (poll(190.0, node_watts=4900.0), "the node reports 4900 W, the maximum of its devices is 400 W"),
    ],
)
def test_a_lasting_contradiction_makes_a_node_distrusted_until_it_is_plausible_for_a_time(
    report: NodePoll, reason: str
) -> None:
    trust = NodeTrust()
    observe(trust, report, 0, 2)
    observe(trust, poll(150.0), 2, 5)
    assert trust.reason is None
    observe(trust, report, 5, 25)
    assert trust.reason == reason
    observe(trust, poll(150.0), 25, 45)
    assert trust.reason == reason
    observe(trust, poll(150.0), 45, 60)
    assert trust.reason is None


def test_a_limit_above_the_ceiling_is_a_contradiction() -> None:
    report = poll(150.0)
    device = dataclasses.replace(report.devices[0], limit_watts=300.0)
    trust = NodeTrust()
    observe(trust, dataclasses.replace(report, devices=(device,)), 0, 5)
    assert trust.reason == "gpu0 has a limit of 300 W above its ceiling of 200 W"


def test_each_relapse_doubles_the_time_to_recovery() -> None:
    trust = NodeTrust()
    observe(trust, poll(0.0), 0, 10)
    observe(trust, poll(150.0), 10, 45)
    assert trust.reason is None
    observe(trust, poll(0.0), 45, 55)
    observe(trust, poll(150.0), 55, 90)
    assert trust.reason is not None
    observe(trust, poll(150.0), 90, 120)
    assert trust.reason is None


def test_unknown_power_is_no_contradiction() -> None:
    trust = NodeTrust()
    observe(trust, poll(None, ceiling=None), 0, 100)
    assert trust.reason is None


@pytest.mark.parametrize(
    ("limit", "accepted", "sentence"),
    [
        (900.0, np.nan, "no budget limits the job"),
        (
            256.0,
            np.nan,
            "budget 'row' lowers gpu from 400 W to 256 W per device (equal), "
            "which slows the job by about 25%",
        ),
        (
            256.0,
            0.05,
            "budget 'row' lowers gpu from 400 W to 256 W per device (equal), "
            "which slows the job by about 25%, "
            "beyond its limit of 5% because the budget allows no more",
        ),
        (
            256.0,
            0.5,
            "budget 'row' lowers gpu from 400 W to 256 W per device (equal), "
            "which slows the job by about 25%, "
            "within its limit of 50%",
        ),
        (
            60.0,
            np.nan,
            "budget 'row' lowers gpu from 400 W to 100 W per device (equal), which slows the job by about "
            "100%; it lacks 40 W although all its devices have their floors",
        ),
        (np.inf, np.nan, "no budget limits the job"),
    ],
)
def test_a_sentence_explains_the_limits_of_a_job(limit: float, accepted: float, sentence: str) -> None:
    levels = np.array([[100.0, 256.0, 400.0]])
    table = groups(1, slowdown_limit=[accepted], level_watts=levels)
    budgets = budget(limit, count=1)
    shares = distribute(table, budgets, DistributionPolicy.EQUAL)
    explainer = DecisionExplainer(table, shares, ["row"], DistributionPolicy.EQUAL)
    assert explainer.job(np.array([0]), ["gpu"]) == sentence


def test_a_limit_above_the_expected_power_takes_nothing() -> None:
    table = groups(1, draw_watts=[200.0])
    shares = distribute(table, budget(300.0, count=1), DistributionPolicy.EQUAL)
    explainer = DecisionExplainer(table, shares, ["row"], DistributionPolicy.EQUAL)
    sentence = explainer.job(np.array([0]), ["gpu"])
    assert sentence == "budget 'row' leaves the job its expected power (limits: gpu 300 W per device)"
