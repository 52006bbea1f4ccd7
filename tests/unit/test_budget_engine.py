"""Tests of the budget engine. The power under each budget must stay below its limit.

This must hold even if nodes fail, messages are lost, or the controller restarts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random

import pytest
from budget_world import RESERVE_WATTS, FakeCluster, FakeNode

from slurm_energy.budget.messages import MAX_DEVICES, JobReport
from slurm_energy.controller.budgets.engine import BudgetEngine
from slurm_energy.controller.budgets.facts import (
    BudgetedJob,
    BudgetedNode,
    BudgetInForce,
    BudgetScope,
    EngineSettings,
    ScopeKind,
)
from slurm_energy.controller.budgets.other_power import UNKNOWN_SLOPE
from slurm_energy.errors import UsageError

CLUSTER = BudgetScope(ScopeKind.CLUSTER)
FULL = {"package-0": 180.0, "gpu0": 380.0, "gpu1": 300.0}
PERIOD_S = 5
IDLE_WATTS = 140.0  # of the devices of a node


def budget(watts: float, scope: BudgetScope = CLUSTER, name: str = "all", **more: float) -> BudgetInForce:
    return BudgetInForce(name, scope, watts, watts, **more)


def cluster(watts: float, count: int = 4, **settings: object) -> FakeCluster:
    engine = BudgetEngine(EngineSettings(**settings))  # type: ignore[arg-type]
    engine.set_budgets([budget(watts)])
    return FakeCluster(engine, [FakeNode(f"n{i}") for i in range(count)])


def reserve_watts(device_watts: float) -> float:
    """Return the power that budgets assume for the parts of a node other than packages and GPUs.

    Budgets assume this power for a node whose power has been read only while the node was idle.

    Args:
        device_watts: power of the node's packages and GPUs.
    """
    return RESERVE_WATTS + UNKNOWN_SLOPE * (device_watts - IDLE_WATTS)


def test_idle_devices_are_held_at_their_minimum_if_not_all_may_run() -> None:
    world = cluster(2000.0)
    world.step(3)
    assert all(node.ceiling == {"package-0": 60.0, "gpu0": 100.0, "gpu1": 100.0} for node in world.nodes)
    (status,) = world.cycle.budgets
    assert status.fixed_watts == pytest.approx(4 * reserve_watts(1.05 * IDLE_WATTS))
    assert status.committed_watts <= 2000.0


def test_devices_keep_their_maximum_if_all_fit() -> None:
    world = cluster(6000.0)
    world.nodes[0].run(1, FULL)
    world.step(3)
    assert world.nodes[0].power == RESERVE_WATTS + sum(FULL.values())
    assert world.cycle.jobs[1].budget is None
    assert world.cycle.jobs[1].explanation == "no budget limits the job"


def test_jobs_get_the_power_that_idle_devices_leave() -> None:
    world = cluster(2000.0)
    world.step(3)
    world.nodes[0].run(1, FULL)
    world.announce()
    world.step(PERIOD_S)
    assert world.nodes[0].power == pytest.approx(RESERVE_WATTS + sum(FULL.values()), rel=0.05)


def test_power_is_below_a_lower_limit_within_one_period() -> None:
    world = cluster(2600.0)
    for job, node in enumerate(world.nodes, 1):
        node.run(job, FULL)
    world.announce()
    world.step(20)
    assert world.power > 2200.0
    world.engine.set_budgets([budget(1600.0)])
    powers = world.step(20)
    assert max(powers[PERIOD_S:]) <= 1600.0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_power_never_exceeds_the_limit_despite_losses_and_jobs(seed: int) -> None:
    rng = random.Random(seed)
    world = cluster(2200.0, 6)
    world.step(5)
    world.loss, limit, since = 0.3, 2200.0, 100
    for job in range(1, 120):
        node = rng.choice(world.nodes)
        if node.jobs and rng.random() < 0.7:
            node.end(next(iter(node.jobs.values()))[0])
        elif not node.jobs and world.cycle.budgets[0].headroom_watts > 300.0:
            node.run(job, {name: rng.uniform(0.3, 1.0) * watts for name, watts in FULL.items()})
        if rng.random() < 0.1:
            limit, since = rng.choice((1700.0, 2200.0, 3000.0)), 0
            world.engine.set_budgets([budget(limit)])
        world.announce()
        power = world.step()[-1]
        since += 1
        # A lost request or response delays a node by a second: 12 in a row are lost once in 10^5 nodes.
        if since > 12:
            assert power <= limit


def test_a_silent_node_counts_at_the_ceilings_that_it_may_hold() -> None:
    world = cluster(2200.0)
    for job, node in enumerate(world.nodes, 1):
        node.run(job, FULL)
    world.announce()
    world.step(15)
    world.cut.add("n0")
    held = sum(world.nodes[0].ceiling.values())
    world.step(10)
    status = world.cycle.nodes["n0"]
    assert status.state == "silent"
    assert status.committed_watts >= held
    assert world.cycle.budgets[0].silent_nodes == 1
    world.engine.set_budgets([budget(1900.0)])
    assert max(world.step(15)[PERIOD_S:]) <= 1900.0


def test_a_node_that_measures_nothing_has_unknown_power() -> None:
    world = cluster(2200.0)
    world.nodes[0].is_measured = world.nodes[0].has_devices = False
    world.step(15)
    assert world.cycle.nodes["n0"].measured_watts is None
    assert world.cycle.budgets[0].unmeasured_nodes == 1
    world.nodes[1].is_measured = False  # it has power limits, so its maximum is known
    world.step(15)
    assert world.cycle.budgets[0].unmeasured_nodes == 1


def test_a_node_with_unknown_devices_counts_at_its_configured_power() -> None:
    world = cluster(5000.0, 2)
    node = world.nodes[0]
    node.is_measured = node.has_package_limits = node.has_gpu_limits = False
    world.step(2)
    assert world.cycle.budgets[0].unmeasured_nodes == 0  # its sensors may need some seconds
    world.step(13)
    assert world.cycle.budgets[0].unmeasured_nodes == 1
    assumed_watts = world.cycle.nodes["n0"].committed_watts
    assert assumed_watts == pytest.approx(reserve_watts(1000.0))  # as on the other node
    world.engine.set_nodes({"n0": BudgetedNode(reserve_watts=700.0), "n1": BudgetedNode()})
    world.step(2)
    assert world.cycle.nodes["n0"].committed_watts == 700.0


def test_a_rebooted_node_counts_at_nameplate_until_it_confirms() -> None:
    world = cluster(2200.0)
    world.step(5)
    node = world.nodes[1]
    node.ceiling.clear()
    node.boot, node.number = 2, 0
    world.cut = {"n0", "n2", "n3"}
    world.now_s += 1
    world.engine.poll(node.poll(), world.now_s)
    cycle = world.engine.decide(world.now_s)
    assert cycle.nodes["n1"].committed_watts == pytest.approx(1000.0 + reserve_watts(1000.0))


def test_a_node_keeps_its_ceilings_until_a_decision_counts_it() -> None:
    world = cluster(2000.0)
    world.step(3)
    late = FakeNode("late", ceiling={"package-0": 60.0, "gpu0": 100.0, "gpu1": 100.0}, number=7)
    decision = world.engine.poll(late.poll(), world.now_s)
    assert decision.number > 0
    assert decision.limits_watts == {}


def test_a_restarted_controller_raises_nothing_before_all_have_reported() -> None:
    world = cluster(2600.0)
    world.nodes[0].run(1, FULL)
    world.announce()
    world.step(10)
    stored = json.loads(json.dumps(world.engine.unsaved()))
    for node in world.nodes[1:]:
        node.run(2, FULL)
    world.engine = BudgetEngine(EngineSettings())
    assert world.engine.restore(stored, world.now_s) == []
    world.engine.set_budgets([budget(2600.0)])
    world.__post_init__()
    world.announce()
    world.cut = {"n3"}
    powers = world.step(10)
    assert max(powers) <= 2600.0
    assert world.nodes[1].ceiling["gpu0"] == 100.0  # n3 may still hold anything that was stored
    world.cut = set()
    assert max(world.step(20)) <= 2600.0
    assert world.nodes[1].ceiling["gpu0"] > 100.0


def test_power_without_limits_counts_after_a_restart_before_it_is_measured() -> None:
    world = cluster(2600.0)
    for node in world.nodes:
        node.has_package_limits = False
        node.run(1, FULL)
    world.announce()
    stored: dict[str, object] = {}
    for _ in range(15):
        world.step()
        stored |= json.loads(json.dumps(world.engine.unsaved()))
    before = world.cycle.budgets[0].fixed_watts
    assert before >= 4 * (RESERVE_WATTS + 180.0)
    world.engine = BudgetEngine(EngineSettings())
    world.engine.restore(stored, world.now_s)
    world.engine.set_budgets([budget(2600.0)])
    world.__post_init__()
    world.announce()
    for node in world.nodes:
        node.is_measured = False
    assert max(world.step(20)) <= 2600.0
    assert world.cycle.budgets[0].fixed_watts == pytest.approx(before, rel=0.05)


def test_a_new_node_counts_like_the_largest_until_its_power_is_known() -> None:
    world = cluster(9000.0, 2)
    world.nodes[1].is_measured = False
    world.step(2)
    assert world.cycle.budgets[0].fixed_watts == pytest.approx(2 * reserve_watts(1000.0))
    world.step(5)
    assert world.cycle.budgets[0].fixed_watts == pytest.approx(reserve_watts(1000.0))  # it has no sensor


def test_a_device_without_a_limit_that_is_no_longer_reported_is_forgotten() -> None:
    """An upgrade of senergyd that joins the dies of AMD cards removes their second dies from the reports.

    While a second die is reported with 0 W, the power of the node's devices without a limit is unknown.
    """
    engine = BudgetEngine(EngineSettings())
    engine.set_nodes({"n0": BudgetedNode()})
    poll = FakeNode("n0").poll()
    die = dataclasses.replace(poll.devices[1], name="gpu9", max_watts=None, min_watts=None, watts=0.0)
    with_die = dataclasses.replace(poll, devices=(*poll.devices, die))
    for now_s in range(8):
        engine.poll(with_die, now_s)
    node = engine._nodes["n0"]
    assert "gpu9" in node.devices and node.rest_watts(IDLE_WATTS) is None
    engine.poll(poll, 9.0)
    assert node.rest_watts(IDLE_WATTS) == pytest.approx(RESERVE_WATTS)
    engine.poll(dataclasses.replace(poll, devices=poll.devices[:1]), 10.0)
    assert node.devices.keys() == {"package-0", "gpu0", "gpu1"}  # the ceilings of the GPUs still count


def test_raises_are_withdrawn_if_they_cannot_be_stored() -> None:
    world = cluster(2600.0)
    world.step(3)
    world.nodes[0].run(1, FULL)
    for _ in range(5):
        world.now_s += 1
        for node in world.nodes:
            node.apply(world.engine.poll(node.poll(), world.now_s))
        world.engine.decide(world.now_s)
        world.engine.withdraw_raises()
    assert world.nodes[0].ceiling == {"package-0": 60.0, "gpu0": 100.0, "gpu1": 100.0}


def test_account_and_cluster_budgets_both_hold() -> None:
    world = cluster(3500.0)
    chem = BudgetScope(ScopeKind.ACCOUNT, frozenset({"chem"}))
    world.engine.set_budgets([budget(3500.0), budget(500.0, chem, "chem")])
    world.nodes[0].run(1, FULL)
    world.nodes[1].run(2, FULL)
    world.announce(chem=1)
    world.step(15)
    devices = world.nodes[0].power - RESERVE_WATTS
    assert devices <= 500.0 - RESERVE_WATTS
    assert world.nodes[1].power > 800.0
    assert world.cycle.jobs[1].budget == "chem"
    assert world.cycle.jobs[1].explanation.startswith("budget 'chem' lowers")


def test_a_budget_of_jobs_has_no_idle_power() -> None:
    """A budget of an account may be set to any limit, whatever its running jobs need while they are idle."""
    world = cluster(3500.0)
    chem = BudgetScope(ScopeKind.ACCOUNT, frozenset({"chem"}))
    world.engine.set_budgets([budget(3500.0), budget(500.0, chem, "chem", constant_watts=20.0)])
    world.nodes[0].run(1, FULL)
    world.announce(chem=1)
    world.step(5)
    of_cluster, of_jobs = world.cycle.budgets
    assert of_cluster.idle_watts >= 4 * (RESERVE_WATTS + IDLE_WATTS)
    assert of_jobs.idle_watts == 20.0
    assert of_jobs.running_idle_watts >= RESERVE_WATTS + IDLE_WATTS
    assert of_cluster.running_idle_watts == 0.0
    assert of_jobs.floor_watts > 260.0 + RESERVE_WATTS


@pytest.mark.parametrize("limit", [4800.0, 5000.0, 9000.0])
def test_new_jobs_may_use_the_power_of_idle_devices_that_need_no_limit(limit: float) -> None:
    """Under 5000 W or more, all devices may have their maximum limit, and idle devices count this limit."""
    world = cluster(limit)
    world.step(20)
    (status,) = world.cycle.budgets
    has_limits = bool(world.nodes[0].ceiling and world.nodes[0].ceiling["gpu0"] < 400.0)
    assert has_limits == (limit < 5000.0)
    above_idle = 4 * (200.0 + 2 * 400.0 - 1.05 * IDLE_WATTS)
    assert min(status.headroom_watts, status.free_watts) >= above_idle
    assert status.headroom_watts - status.unlimited_idle_watts <= limit - status.committed_watts
    for number, node in enumerate(world.nodes, 1):
        node.run(number, dict.fromkeys(node.devices, 400.0))
    world.announce()
    assert max(world.step(10)) <= limit


def test_idle_devices_without_a_limit_leave_the_lowest_limit_low() -> None:
    lowest = []
    for count in (1, 4):
        world = cluster(math.inf, count)
        world.nodes[0].run(1, FULL)
        world.announce()
        world.step(5)
        (status,) = world.cycle.budgets
        lowest.append(status.lowest_limit_watts)
    assert lowest[1] - lowest[0] < 3 * 500.0  # an idle node may draw more than 1000 W


def test_the_lowest_limit_that_jobs_can_keep_is_known_without_a_limit() -> None:
    lowest = []
    for limit in (1e5, math.inf):
        world = cluster(limit, margin_percent=4.0)
        world.nodes[0].run(1, FULL)
        world.announce()
        world.step(5)
        (status,) = world.cycle.budgets
        lowest.append(status.lowest_limit_watts)
        if math.isfinite(limit):
            reachable = 0.96 * limit - status.reachable_headroom_watts
            assert status.lowest_limit_watts == pytest.approx(reachable / 0.96)
            assert status.idle_watts < reachable < status.committed_watts
    assert lowest[0] == pytest.approx(lowest[1])
    assert set(status.retained_watts) == {0.0}


def test_budgets_of_partitions_and_nodes_count_whole_nodes() -> None:
    world = cluster(9000.0)
    world.engine.set_nodes({f"n{i}": BudgetedNode(frozenset({"gpu" if i < 2 else "cpu"})) for i in range(4)})
    gpu = BudgetScope(ScopeKind.PARTITION, frozenset({"gpu"}))
    row = BudgetScope(ScopeKind.NODES, frozenset({"n1", "n2"}))
    world.engine.set_budgets([budget(900.0, gpu, "gpu"), budget(800.0, row, "row")])
    for job, node in enumerate(world.nodes, 1):
        node.run(job, FULL)
    world.announce()
    world.step(20)
    assert world.nodes[0].power + world.nodes[1].power <= 900.0
    assert world.nodes[1].power + world.nodes[2].power <= 800.0
    assert world.nodes[3].power == RESERVE_WATTS + sum(FULL.values())
    assert world.nodes[3].ceiling == {}


def test_running_jobs_keep_their_floors_and_the_shortfall_is_reported() -> None:
    world = cluster(1200.0, 2)
    world.engine.set_budgets([budget(1200.0, floor_percent=50.0)])
    for job, node in enumerate(world.nodes, 1):
        node.run(job, FULL)
    world.announce()
    world.step(10)
    assert all(node.ceiling["gpu0"] == pytest.approx(250.0) for node in world.nodes)
    (status,) = world.cycle.budgets
    assert status.shortfall_watts == pytest.approx(status.floor_watts - 1200.0 * 0.98, abs=1.0)
    assert status.headroom_watts < 0


def test_unknown_nodes_of_slurm_count_at_nameplate() -> None:
    world = cluster(5000.0, 1)
    world.engine.set_nodes({"n0": BudgetedNode(), "dark": BudgetedNode(), "off": BudgetedNode(is_off=True)})
    world.step(2)
    assert world.cycle.budgets[0].fixed_watts == pytest.approx(2 * reserve_watts(1000.0) + 1000.0)


def test_nodes_that_are_off_or_boot_count_at_their_power() -> None:
    """Nodes that Slurm powers down count at their off power, and booting nodes at their boot power.

    One node has reported before it is powered down. The other node has never reported.
    """
    world = cluster(5000.0, 2)
    world.step(2)

    def fixed_watts(**more: BudgetedNode) -> float:
        world.engine.set_nodes({"n0": BudgetedNode(), "n1": BudgetedNode()} | more)
        world.step(2)
        return world.cycle.budgets[0].fixed_watts

    assert fixed_watts() == pytest.approx(2 * reserve_watts(1000.0))
    off = BudgetedNode(is_off=True, off_watts=8.0)
    assert fixed_watts(n1=off, dark=off) == pytest.approx(reserve_watts(1000.0) + 2 * 8.0)
    world.cut.add("n1")
    boots = BudgetedNode(nameplate_watts=100.0, boot_watts=2300.0)
    fixed_watts(n1=boots, dark=boots)
    # The power of the boot is in the committed power, whatever was committed to the devices before.
    idle = world.cycle.nodes["n0"].committed_watts
    assert world.cycle.nodes["n1"].committed_watts >= 2300.0
    assert world.cycle.budgets[0].committed_watts >= idle + 2 * 2300.0 - 1e-6


def test_power_that_starting_jobs_may_draw_stays_free() -> None:
    world = cluster(2600.0)
    for job, node in enumerate(world.nodes[:3], 1):
        node.run(job, FULL)
    world.announce()
    usable = 2600.0 * 0.98
    # Power at the lowest limits minus idle power of the free node; a GPU may draw 1.4 times its lowest limit.
    kept = 60.0 - 1.05 * 40.0 + 2 * (140.0 - 1.05 * 50.0)
    kept *= 1.0 + UNKNOWN_SLOPE
    for promised, free in ((0.0, 0.0), (50.0, 50.0), (1000.0, kept)):
        world.engine.set_promised({"all": promised})
        world.step(20)
        assert world.cycle.budgets[0].committed_watts == pytest.approx(usable - free, abs=15.0)


def test_a_job_that_draws_more_than_the_lowest_limits_of_its_gpus_exceeds_no_limit() -> None:
    world = cluster(3000.0, counts_idle=False)
    for job, node in enumerate(world.nodes[:3], 1):
        node.run(job, FULL)
    node, gpus = world.nodes[3], [f"gpu{index}" for index in range(6)]
    node.gpus, node.lowest = len(gpus), dict.fromkeys(gpus, 138.0)
    world.announce()
    world.step(20)
    node.run(4, dict.fromkeys(gpus, 380.0))
    world.announce()
    assert sum(node.watts(name) for name in gpus) == 6 * 138.0  # the ceilings are 6 x 100 W
    assert max([world.power, *world.step(20)]) <= 3000.0


def test_power_that_a_device_draws_above_a_lowered_ceiling_is_not_given_to_others() -> None:
    world = cluster(2600.0)
    for job, node in enumerate(world.nodes, 1):
        node.run(job, FULL)
    world.announce()
    world.step(20)
    world.nodes[0].lowest = {"package-0": 180.0, "gpu0": 330.0, "gpu1": 300.0}
    world.engine.set_budgets([budget(2200.0)])
    world.step(PERIOD_S)
    world.nodes[1].end(2)
    powers = world.step(3)
    world.nodes[1].run(5, FULL)
    world.announce()
    assert max(powers + world.step(20)) <= 2200.0


def test_measured_power_above_the_committed_is_taken_off_the_limit() -> None:
    world = cluster(2000.0)
    for job, node in enumerate(world.nodes, 1):
        node.run(job, FULL)
    world.announce()
    world.step(10)
    before = world.power
    for node in world.nodes:
        node.sensor_factor = 1.15
    world.step(20)
    assert world.power < before * 0.95


def test_a_node_that_reports_again_gets_no_ceilings_before_the_next_decision() -> None:
    world = cluster(2600.0)
    node = world.nodes[0]
    node.run(1, FULL)
    world.announce()
    world.step(10)
    world.cut.add(node.name)
    world.step(5)
    assert world.engine.poll(node.poll(), world.now_s).limits_watts == {}
    world.engine.decide(world.now_s)
    assert world.engine.poll(node.poll(), world.now_s).limits_watts.keys() == set(node.devices)


def test_leases_end_before_a_known_fall_of_the_limit() -> None:
    world = cluster(2600.0)
    engine = world.engine
    world.step(3)
    assert engine.poll(world.nodes[0].poll(), world.now_s).lease_s == 30.0
    for falls_in_s, lease_s in ((60.0, 30.0), (20.0, 20.0 - engine.reaction_s), (1.0, 2.0 * engine.poll_s)):
        engine.set_budgets([budget(2600.0, falls_in_s=falls_in_s)])
        assert engine.poll(world.nodes[0].poll(), world.now_s).lease_s == lease_s


def test_observe_mode_sends_no_limits() -> None:
    world = cluster(1500.0, enforces=False)
    world.nodes[0].run(1, FULL)
    world.announce()
    world.step(5)
    assert world.nodes[0].ceiling == {}
    assert world.cycle.budgets[0].limit_watts == 1500.0
    assert world.cycle.jobs[1].wanted_watts >= sum(FULL.values())


def test_without_budgets_nodes_are_released() -> None:
    world = cluster(1500.0)
    world.step(5)
    assert world.nodes[0].ceiling
    world.engine.set_budgets([])
    world.step(2)
    assert world.nodes[0].ceiling == {}


def test_a_node_that_slurm_no_longer_has_is_forgotten() -> None:
    world = cluster(2000.0)
    world.step(3)
    world.cut.add("n3")
    world.engine.set_nodes({f"n{i}": BudgetedNode() for i in range(3)})
    world.step(3)
    assert set(world.cycle.nodes) == {"n0", "n1", "n2"}
    assert max(world.step(3)) < math.inf


def test_jobs_that_slurm_has_not_named_are_listed() -> None:
    world = cluster(2000.0)
    world.nodes[0].run(5, FULL)
    world.step(1)
    assert world.engine.unknown_jobs == {(5, 0)}
    world.engine.set_jobs({5: BudgetedJob(5)})
    assert world.engine.unknown_jobs == frozenset()


def test_reports_about_jobs_of_other_nodes_do_not_count() -> None:
    world = cluster(2000.0)
    world.nodes[0].run(1, FULL)
    world.announce()
    world.step(2)
    liar = world.nodes[1]
    liar.jobs, liar.slowdown_limit = {"gpu0": (1,)}, 0.0
    world.step(2)
    reports = world.engine._job_reports()
    assert reports[1].nodes == 1
    assert reports[1].slowdown_limit is None
    assert 1 not in world.engine._nodes["n1"].job_ids
    assert world.engine._nodes["n1"].devices["gpu0"].report.job_ids  # it is busy all the same


def test_a_requeued_job_counts_on_its_new_node_before_slurm_has_told() -> None:
    world = cluster(2000.0)
    world.nodes[0].run(1, FULL)
    world.announce()
    world.step(2)
    poll = world.nodes[1].poll()
    gpu = dataclasses.replace(poll.devices[1], job_ids=(1,))
    devices = (poll.devices[0], gpu, *poll.devices[2:])
    world.engine.poll(dataclasses.replace(poll, devices=devices, jobs=(JobReport(1, 1),)), world.now_s)
    assert world.engine._nodes["n1"].job_ids == {1}


def test_a_node_cannot_invent_devices_without_end() -> None:
    world = cluster(2000.0)
    world.step(3)
    poll = world.nodes[0].poll()
    invented = [
        dataclasses.replace(poll.devices[1], name=f"gpu{i}", max_watts=100.0) for i in range(100, 1000)
    ]
    world.engine.poll(dataclasses.replace(poll, devices=tuple(invented[:250])), world.now_s)
    with pytest.raises(UsageError, match="devices"):
        world.engine.poll(dataclasses.replace(poll, devices=tuple(invented[250:500])), world.now_s)
    assert len(world.engine.commitment.rows("n0")) <= MAX_DEVICES


def test_a_node_cannot_take_the_power_of_others_by_claiming_huge_devices() -> None:
    world = cluster(2000.0)
    world.nodes[1].run(1, FULL)
    world.announce()
    world.step(20)
    before = world.nodes[1].power
    poll = world.nodes[0].poll()
    for name, watts in (("gpu7", 1e6), ("package-7", 1e6)):
        huge = dataclasses.replace(poll.devices[1], name=name, max_watts=watts)
        with pytest.raises(UsageError, match="max_watts"):
            world.engine.poll(dataclasses.replace(poll, devices=(*poll.devices, huge)), world.now_s)
    world.step(20)
    assert world.nodes[1].power == before


def test_the_sum_of_all_devices_that_a_node_ever_claimed_is_bounded() -> None:
    world = cluster(2000.0, max_watts={"cpu": 1000.0, "gpu": 1000.0, "node": 3000.0})
    world.step(3)
    poll = world.nodes[0].poll()
    with pytest.raises(UsageError, match="of node"):
        for index in range(10, 20):
            other = dataclasses.replace(poll.devices[1], name=f"gpu{index}", max_watts=900.0)
            world.engine.poll(dataclasses.replace(poll, devices=(other,)), world.now_s)
