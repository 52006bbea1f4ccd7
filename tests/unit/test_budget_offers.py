"""Tests of how the power of a budget is divided between pending and running jobs.

The tests check the power that is offered to pending jobs and the power that running jobs keep. They
also check a special case: the GPUs of a job are slowed down by their own power limits. A limit of the
job's CPU packages then costs no additional time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from slurm_energy.budget.admission import offered_watts
from slurm_energy.budget.license_plan import WithheldPower, withheld_power
from slurm_energy.budget.messages import DeviceReport, NodePoll
from slurm_energy.budget.power_table import ANY_PARTITION, PartitionPower
from slurm_energy.budget.reachable_limits import START_GPU_RATIO, ReachableLimits
from slurm_energy.budget.work_price import PRICES
from slurm_energy.config import parse
from slurm_energy.controller.budgets.admission import BudgetAdmission
from slurm_energy.controller.budgets.cluster_headroom import cluster_headroom
from slurm_energy.controller.budgets.curves import lowest_power
from slurm_energy.controller.budgets.draw import DeviceDraw
from slurm_energy.controller.budgets.facts import BudgetedJob, BudgetScope, ScopeKind
from slurm_energy.controller.budgets.feasible_licenses import feasible_licenses
from slurm_energy.controller.budgets.groups import build_groups
from slurm_energy.controller.budgets.job_coverage import covering_budgets
from slurm_energy.controller.budgets.licenses import (
    BudgetHeadroom,
    license_demands,
    retained_licenses,
    waiting_sentence,
)
from slurm_energy.controller.budgets.nodes import BudgetDevice, BudgetNode
from slurm_energy.controller.budgets.pending_power import pending_power
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, queue_columns
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint

KEPT = tuple(float(len(PRICES) - level) for level in range(len(PRICES)))
"""Power that running jobs keep from a job, by price level."""


def headroom(**values: object) -> BudgetHeadroom:
    columns = {"limit_watts": 1000.0, "headroom_watts": 500.0, "retained_watts": KEPT, **values}
    return BudgetHeadroom("site", BudgetScope(ScopeKind.CLUSTER), **columns)


@pytest.mark.parametrize("partition", ["gpu", "cpu,gpu"])
@pytest.mark.parametrize("qos", ["high", "normal,high", "Normal,HIGH"])  # as Slurm 24.11 shows pending jobs
def test_a_budget_covers_jobs_that_may_start_in_its_partition_or_qos(partition: str, qos: str) -> None:
    for scope, is_covered in [
        (BudgetScope(ScopeKind.QOS, frozenset({"high"})), True),
        (BudgetScope(ScopeKind.QOS, frozenset({"hi", "igh", "normal,high"})), False),
        (BudgetScope(ScopeKind.PARTITION, frozenset({"gpu"})), True),
        (BudgetScope(ScopeKind.ACCOUNT, frozenset({"gpu", "high"})), False),
        (BudgetScope(ScopeKind.NODES, frozenset({"alice", "physics", "gpu", "high"})), False),
        (BudgetScope(ScopeKind.CLUSTER), True),
    ]:
        budget = BudgetHeadroom("site", scope, limit_watts=1000.0, headroom_watts=500.0)
        assert budget.covers("alice", "physics", partition, qos) is is_covered


def test_unused_power_is_always_offered_and_used_power_only_to_jobs_that_fit() -> None:
    assert offered_watts(500.0, 200.0, []) == 200.0
    assert offered_watts(500.0, 200.0, [600.0]) == 200.0
    assert 300.0 <= offered_watts(500.0, 200.0, [600.0, 300.0]) <= 350.0
    assert offered_watts(500.0, -100.0, [300.0, 300.0]) == 500.0
    assert offered_watts(-50.0, -100.0, []) == -50.0


def test_the_power_that_is_not_offered_is_withheld_now_but_not_after_a_step() -> None:
    entries = withheld_power(1000, 400, 500.0, 900.0, [(100.0, 800.0)], 0.0, offered_watts=200.0)
    assert entries == [WithheldPower(0, None, 200), WithheldPower(0, 100, 200)]
    assert withheld_power(1000, 400, 500.0, 900.0, [], 0.0) == [WithheldPower(0, None, 100)]


def test_licenses_count_from_the_highest_price_of_the_pending_jobs() -> None:
    level = len(PRICES) - 10
    budget = headroom().at_level(level)
    assert budget.headroom_watts == 500.0 - KEPT[level]
    assert budget.retained_from(level) == 0.0
    assert budget.retained_from(level - 5) == 5.0
    assert budget.unused_watts == pytest.approx(500.0 - KEPT[0])
    assert headroom(retained_watts=()).at_level(level).headroom_watts == 500.0


def test_all_budgets_of_the_cluster_are_kept_together() -> None:
    contract = headroom(retained_watts=(), steps=[(10.0, 800.0), (30.0, 1200.0)])
    grid = replace(contract, name="grid", limit_watts=900.0, headroom_watts=390.0, steps=[(20.0, 600.0)])
    free = replace(
        contract, name="free", limit_watts=math.inf, headroom_watts=math.inf, steps=[(40.0, 555.0)]
    )
    rack = replace(contract, scope=BudgetScope(ScopeKind.PARTITION, frozenset({"rack"})), headroom_watts=1.0)
    both = cluster_headroom([rack, contract, grid, free])
    assert both is not None and (both.name, both.headroom_watts) == ("grid", 390.0)
    # The budget `grid` counts 10 W more than `contract`, for example of switches.
    assert both.steps == [(10.0, 810.0), (20.0, 600.0), (30.0, 600.0), (40.0, 555.0)]
    assert cluster_headroom([rack, contract]) is contract
    assert cluster_headroom([rack]) is None


def test_the_constant_power_of_a_budget_of_the_cluster_counts_before_its_limit_begins() -> None:
    site = headroom(retained_watts=(), idle_watts=100.0)
    free = replace(site, name="free", limit_watts=math.inf, headroom_watts=math.inf, idle_watts=130.0)
    cooled = replace(free, steps=[(40.0, 800.0)])
    for budgets in ([site, cooled], [replace(free, idle_watts=100.0), cooled]):
        both = cluster_headroom(budgets)
        assert both is not None and both.steps == [(40.0, 770.0)]


def test_the_budgets_of_equal_jobs_are_determined_once() -> None:
    asked: list[tuple[str, ...]] = []

    class Scope:
        def covers(self, *attributes: str) -> bool:
            asked.append(attributes)
            return attributes[1] == "chem"

    users, accounts = ["alice", "bob", "alice", "alice"], ["chem", "bio", "chem", "bio"]
    queue = queue_columns(0.0, [1, 2, 3, 4], user=users, account=accounts)
    names_of = covering_budgets(queue, {"watts_chem": Scope()})
    assert [names_of(row) for row in range(4)] == [("watts_chem",), (), ("watts_chem",), ()]
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("account", "flags", "idle_watts", "licenses"),
    [
        ("chem", {}, 0.0, 760),
        ("chem", {}, 150.0, 712),
        ("chem", {}, 250.0, 617),
        ("chem", {}, 350.0, 1500),  # 550 W are left for a job that needs 600 W
        ("chem", {"ENERGY_SLOWDOWN": "5%"}, 0.0, 1500),
        ("physics", {}, 150.0, 1500),
    ],
)
def test_a_job_larger_than_the_budget_of_its_account_requests_what_this_budget_can_free(
    account: str, flags: dict[str, str], idle_watts: float, licenses: int
) -> None:
    site = headroom(limit_watts=9000.0, headroom_watts=5000.0, retained_watts=())
    chem = replace(site, scope=BudgetScope(ScopeKind.ACCOUNT, frozenset({"chem"})), limit_watts=900.0)
    chem = replace(chem, headroom_watts=500.0)
    accounts = [account, "chem", "physics"]
    queue = queue_columns(0.0, [1, 2, 3], state=[PENDING, RUNNING, RUNNING], flags=[flags, {}, {}])
    wanted, least = np.array([1500, 300, 2000]), np.array([600.0, 0.0, 0.0])
    budgets = {"watts": site, "watts_chem": chem}
    powers = {ANY_PARTITION: PartitionPower(0.0, 0.0, 1, idle_cpu_watts=idle_watts)}

    def names_of(row: int) -> list[str]:
        return ["watts", "watts_chem"] if accounts[row] == "chem" else ["watts"]

    # Under the budget of chem, 500 W are free, and job 2 frees another 300 W.
    result = feasible_licenses(queue, wanted, least, budgets, names_of, {2: 300, 3: 2000}, powers)
    assert result.tolist() == [licenses, 300, 2000]
    no_limit = {"watts": None, "watts_chem": None}
    result = feasible_licenses(queue, wanted, least, no_limit, names_of, {}, powers)
    assert result.tolist() == wanted.tolist()


@pytest.mark.parametrize(("cpus", "licenses"), [(4, 1330), (8, 1200), (9, 3000)])
def test_the_idle_power_of_running_jobs_becomes_free_for_a_job_larger_than_the_budget(
    cpus: int, licenses: int
) -> None:
    """Running jobs use the whole budget: 1400 W with licenses, and 600 W for their idle devices."""
    scope = BudgetScope(ScopeKind.ACCOUNT, frozenset({"chem"}))
    chem = replace(headroom(retained_watts=()), scope=scope, limit_watts=2000.0, headroom_watts=0.0)
    queue = queue_columns(0.0, [1, 2], state=[PENDING, RUNNING], cpus=[cpus, 6])
    powers = {ANY_PARTITION: PartitionPower(0.0, 0.0, 1, idle_cpu_watts=100.0)}
    wanted, least = np.array([3000, 1400]), np.array([1200.0, 0.0])
    result = feasible_licenses(
        queue, wanted, least, {"watts_chem": chem}, lambda row: ["watts_chem"], {2: 1400}, powers
    )
    assert result.tolist() == [licenses, 1400]


def test_licenses_follow_the_tightest_budget_of_the_cluster() -> None:
    commands: list[str] = []

    def run(argv: Sequence[str]) -> str:
        commands.append(" ".join(argv))
        listing = "LicenseName=watts Total=1000 Used=100 Free=900 Reserved=0 Remote=no\n"
        return listing if commands[-1].endswith("show licenses") else ""

    failures = RepeatedFailureLog(logging.getLogger("test"))
    admission = BudgetAdmission(parse('[budget]\nmode = "enforce"\n'), None, failures, run)  # type: ignore[arg-type]
    contract = headroom(retained_watts=())
    report = admission.update(0.0, [contract, replace(contract, name="grid", headroom_watts=300.0)], (), {})
    assert report.problems == () and report.offers == {"site": 300.0, "grid": 300.0}
    (created,) = [command for command in commands if "create" in command]
    assert "ReservationName=senergy_budget_watts " in created and "Licenses=watts:600 " in created


def test_a_pending_job_requests_what_running_jobs_keep_from_it() -> None:
    queue = queue_columns(0.0, [1, 2], state=[PENDING, RUNNING])
    levels = np.array([len(PRICES) - 3, 0])
    kept = retained_licenses(queue, levels, {"watts": headroom()}, lambda row: ["watts"])
    assert kept.tolist() == [3, 0]
    sentence = waiting_sentence(600, headroom(), len(PRICES) - 3)
    assert sentence == (
        "waits for power: it adds 600 W, and 497 W are free under budget 'site'; "
        "running jobs do more work with 3 W"
    )


def test_only_jobs_that_lack_licenses_are_offered_power() -> None:
    reasons = ["Licenses", "Resources", "None", "Licenses"]
    queue = queue_columns(0.0, [1, 2, 3, 4], reason=reasons, held=[False, False, False, True])
    full = np.array([100, 200, 300, 400])
    power = pending_power(
        queue, full, [False] * 4, {ANY_PARTITION: PartitionPower(1.0, 1.0, 1)}, np.full(4, np.nan), 0.0, {}
    )
    demand = license_demands(queue, full, power, ["watts"], lambda row: ["watts"], 0.0)["watts"]
    assert demand.watts.tolist() == [100.0, 300.0]
    budget = headroom(retained_watts=(), headroom_watts=450.0)
    assert demand.offered_watts(budget, 95.0) == pytest.approx(110.0)
    assert demand.offered_watts(budget, 0.0) == 0.0


@pytest.mark.parametrize(("reachable", "watts"), [(40.0, 200.0), (80.0, 130.0), (100.0, 100.0)])
def test_jobs_that_can_be_lowered_start_before_a_fall(reachable: float, watts: float) -> None:
    """A job may start before the limit of its budget falls if its power can be reduced enough later.

    After the fall, the power of all started jobs at their lowest power limits fits under the new limit.
    """
    budget = headroom(headroom_watts=500.0, reachable_headroom_watts=500.0, steps=[(9.0, 600.0)])
    ((_, limit_watts),) = budget.reachable_steps(np.array([100.0]), np.array([reachable]))
    after = 500.0 - (1000.0 - limit_watts)
    assert after == pytest.approx(min(100.0 / (max(50.0, reachable) / 100.0), 500.0))
    assert after * max(50.0, reachable) / 100.0 <= 100.0 + 1e-9
    assert watts >= 100.0
    unknown = headroom(steps=[(9.0, 600.0), (19.0, 1200.0)])
    assert unknown.reachable_steps(np.array([100.0]), np.array([reachable])) == unknown.steps


@pytest.mark.parametrize(
    ("reachable", "lowest_limit", "free"),
    [
        (40.0, 700.0, 600.0),  # 300 W are left, and each job draws at most half of its licenses
        (80.0, 700.0, 375.0),
        (100.0, 2000.0, 0.0),  # the running jobs alone exceed the limit
        (100.0, math.inf, -350.0),  # unknown
    ],
)
def test_jobs_that_can_be_lowered_start_before_the_begin_of_a_limit(
    reachable: float, lowest_limit: float, free: float
) -> None:
    """Without a limit now, running jobs hold 1200 licenses, and the idle power is 150 W."""
    budget = headroom(
        limit_watts=math.inf,
        headroom_watts=math.inf,
        idle_watts=150.0,
        lowest_limit_watts=lowest_limit,
        steps=[(9.0, 1000.0), (19.0, math.inf)],
    )
    steps = budget.reachable_steps(np.array([100.0]), np.array([reachable]), 1200.0)
    assert steps[1] == (19.0, math.inf)
    plan = withheld_power(3000, 1200, math.inf, math.inf, steps, 0.0, idle_watts=150.0)
    (withheld,) = [one.watts for one in plan if one.start_unix_s == 9]
    assert 3000 - 1200 - withheld == free


@pytest.mark.parametrize(
    ("lowest_limit", "free"),
    [
        (1500.0, 500),
        (2600.0, 200),  # the lowest power is not known, and counts as the power without a limit
    ],
)
def test_a_coming_limit_of_an_account_counts_the_idle_power_of_running_jobs(
    lowest_limit: float, free: int
) -> None:
    """Without a limit now, running jobs hold 600 licenses, and 1200 W are their idle power."""
    budget = replace(
        headroom(limit_watts=math.inf, headroom_watts=math.inf, lowest_limit_watts=lowest_limit),
        running_idle_watts=1200.0,
        scope=BudgetScope(ScopeKind.ACCOUNT, frozenset({"chem"})),
        steps=[(9.0, 2000.0), (19.0, math.inf)],
    )
    steps = budget.reachable_steps(np.array([100.0]), np.array([100.0]), 600.0)
    assert steps[1] == (19.0, math.inf)
    plan = withheld_power(3000, 600, math.inf, math.inf, steps, 0.0, idle_watts=budget.idle_watts)
    (withheld,) = [one.watts for one in plan if one.start_unix_s == 9]
    assert 3000 - 600 - withheld == free


def device(name: str, limit_watts: float, watts: float, *, seconds: int) -> BudgetDevice:
    report = DeviceReport(name, name, 100.0, 400.0, limit_watts, watts, (7,), limit_watts)
    made = BudgetDevice(BudgetNode("n1", 0), report, 0)
    for second in range(seconds):
        made.update(report, 0, {}, float(second))
    return made


@pytest.mark.parametrize(("gpu_watts", "is_free"), [(200.0, True), (150.0, False)])
def test_a_limit_of_packages_costs_no_time_while_limits_hold_the_gpus_back(
    gpu_watts: float, is_free: bool
) -> None:
    devices = [device("package-0", 400.0, 200.0, seconds=60)]
    devices += [device(f"gpu{index}", 200.0, gpu_watts, seconds=60) for index in range(2)]
    draws = np.full(3, 300.0)
    groups = build_groups(devices, draws, np.zeros(3), {7: BudgetedJob(7)}, {})
    package = groups.columns.time_ratio[groups.of_device[0]]
    assert (package[0] < 1.02) == is_free
    alone = build_groups(devices[:1], draws[:1], np.zeros(1), {7: BudgetedJob(7)}, {})
    assert alone.columns.time_ratio[0, 0] > 1.1


def test_the_share_of_limited_time_begins_anew_with_each_job() -> None:
    draw = DeviceDraw()
    for second in range(60):
        draw.update(200.0, 200.0, (1,), float(second))
    assert draw.limited_share > 0.9
    draw.update(200.0, 200.0, (2,), 60.0)
    assert draw.limited_share == 0.0


def gpu_poll(watts: float, ceiling: float) -> DeviceReport:
    return DeviceReport("gpu0", "A100", 100.0, 400.0, ceiling, watts, (1,), ceiling)


def test_the_power_at_the_lowest_limit_is_unknown_until_the_device_has_had_it() -> None:
    limits = ReachableLimits()

    def report(watts: float, ceiling: float, now_s: float) -> None:
        limits.apply(NodePoll("n1", "boot", 1, (gpu_poll(watts, ceiling),), None, None), now_s)

    for second in range(10):
        report(300.0, 300.0, float(second))
    assert limits.reachable_watts("gpu0") == pytest.approx(START_GPU_RATIO * 100.0)
    report(100.0, 100.0, 10.0)
    assert limits.reachable_watts("gpu0") == 100.0
    assert limits.reachable_watts("package-0") == math.inf


def test_the_measured_power_at_the_lowest_limit_of_earlier_runs_counts() -> None:
    def curve(limit_watts: float) -> ResponseCurve:
        point = OperatingPoint(gpu_limit_watts=limit_watts)
        return ResponseCurve(
            "A100", "x", (ResponsePoint(point, 3.0, 0.4, CurveSource.EARLIER_RUNS, count=1),)
        )

    arguments = [(1,)], ["A100"], np.ones(1, np.bool_), np.array([100.0]), np.array([300.0])
    known = lowest_power(*arguments, {1: BudgetedJob(1, curves={"A100": curve(100.0)})}, {})
    assert known[0] == pytest.approx(120.0, rel=0.05)
    unknown = lowest_power(*arguments, {1: BudgetedJob(1, curves={"A100": curve(200.0)})}, {})
    assert np.isnan(unknown[0])
