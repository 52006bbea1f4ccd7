"""Tests of the resources that the deferral of pending jobs in senergyctld considers.

The tests cover running and expected jobs, job arrays, GPUs and pools of nodes.
"""

import pytest
from deferral_site import CHEAP_S, CONFIG, HOUR, NOW, Site, Slurm, prices
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.accounting.history.arrivals import PastArrival
from slurm_energy.config import parse
from slurm_energy.controller.deferral.capacity import (
    free_capacity,
    partition_pools,
    requested_units,
    resource_kinds,
)
from slurm_energy.controller.deferral.signals import signal_columns
from slurm_energy.slurm.queue.columns import RUNNING
from slurm_energy.slurm.queue.node_resources import NodeResources


def test_full_slots_do_not_take_more_jobs_than_fit() -> None:
    site = Site(cpus=8)
    for _ in range(5):
        site.slurm.add("5h", time_limit_s=2 * HOUR)
    site.cycle()
    starts = sorted(facts.planned_start_s for facts in site.planner.jobs.values())
    assert starts.count(CHEAP_S) == 2


def test_a_full_cluster_releases_no_job_that_can_still_wait() -> None:
    site = Site(cpus=4)
    site.slurm.add("", state=RUNNING, start_s=NOW - 100.0, time_limit_s=HOUR)
    job = site.slurm.add("12h")
    site.run_until(NOW + 1800.0)
    assert site.planner.held == 1 and site.slurm.begin(job) > NOW + 1800.0


def test_a_job_that_exceeds_its_prediction_blocks_its_units_for_a_while_only() -> None:
    site = Site(cpus=4)
    site.slurm.add("", state=RUNNING, start_s=NOW - 10 * HOUR, time_limit_s=HOUR)
    job = site.slurm.add("12h")
    site.cycle()
    assert site.planner.jobs[job].planned_start_s == CHEAP_S


def test_urgent_jobs_that_wait_take_the_cheap_hours_first() -> None:
    site = Site(cpus=4)
    site.slurm.add("", state=RUNNING, start_s=NOW, time_limit_s=2 * (CHEAP_S - NOW))
    for _ in range(2):  # half their limits is predicted: they fill the cheap hours after the running job
        site.slurm.add("", time_limit_s=2 * HOUR, uid=1001, user="bob")
    job = site.slurm.add("12h")
    site.cycle()
    assert job not in site.planner.jobs or site.planner.jobs[job].planned_start_s >= CHEAP_S + 2 * HOUR - 900


def test_arrivals_of_the_past_keep_cheap_hours_free() -> None:
    past = [PastArrival("", NOW - at * 600.0, 2 * HOUR, "cpu=8", 0.0) for at in range(100, 0, -1)]
    site = Site(cpus=8)
    site.planner.arrivals = past
    job = site.slurm.add("12h")
    site.cycle()
    assert job not in site.planner.jobs  # a job of 8 CPUs every ten minutes leaves nothing
    site.planner.arrivals = [replace_slack(one) for one in past]
    site.cycle()
    assert job in site.planner.jobs


def test_arrivals_that_have_not_ended_count_like_those_that_have() -> None:
    site = Site(cpus=8)
    site.planner.arrivals = [
        PastArrival("", NOW - at * 5000.0, 60.0, "cpu=1", 0.0) for at in range(12, 0, -1)
    ]
    for at in range(100, 0, -1):
        running = {"state": RUNNING, "submit_s": NOW - at * 600.0, "start_s": NOW}
        site.slurm.add("", cpus=8, time_limit_s=2 * HOUR, **running)
    job = site.slurm.add("12h")
    site.cycle()
    assert job not in site.planner.jobs
    for other in range(100, 200):
        site.slurm.change(other, flags={"ENERGY_SLACK": "96h"})
    site.cycle()
    assert job in site.planner.jobs


def replace_slack(arrival: PastArrival) -> PastArrival:
    """Return a past arrival of a job, with its slack replaced by four days.

    A job with such a slack can be deferred, so the forecast must not expect it to need resources now.
    """
    return arrival._replace(slack_s=96 * HOUR)


def test_partitions_without_common_nodes_are_planned_apart() -> None:
    nodes = [
        NodeResources("a1", frozenset({"cpu", "short"}), cpus=8),
        NodeResources("a2", frozenset({"short"}), cpus=8),
        NodeResources("b1", frozenset({"big"}), cpus=8),
        NodeResources("b2", frozenset({"big", "huge"}), cpus=8),
        NodeResources("c1", frozenset({"short", "long"}), cpus=8, usable=False),
    ]
    pools = partition_pools(nodes)
    assert pools == {"cpu": 0, "short": 0, "long": 0, "big": 1, "huge": 1}
    slurm = Slurm()
    slurm.add("", state=RUNNING, start_s=NOW, time_limit_s=96 * HOUR, cpus=16, partition="big")
    small, big = slurm.add("12h", partition="short,big"), slurm.add("12h", partition="huge")
    queue = slurm.read()
    kinds = resource_kinds(queue, nodes)
    rows, units = requested_units(queue, kinds)
    signals = signal_columns(parse(CONFIG), {"price_per_kwh": prices()}, NOW)
    time_s = queue.time_limit_s
    capacity = free_capacity(queue, units, rows, kinds, time_s, nodes, signals, NOW)
    assert capacity is not None and rows.tolist() == [2, 0, 2]
    assert capacity.units[:, 0].tolist() == [16.0, 0.0, 0.0, 0.0]
    site = Site(slurm=slurm)
    site.planner._nodes = lambda: nodes
    site.cycle()
    assert small in site.planner.jobs and big not in site.planner.jobs


@pytest.mark.parametrize("gpu_kind", ["a100", ""])
@pytest.mark.parametrize("others", [{}, {"h100": 4}])
def test_gpus_that_are_in_use_are_not_planned_whether_or_not_a_job_names_their_type(
    gpu_kind: str, others: dict[str, int]
) -> None:
    site = Site()
    site.planner._nodes = lambda: [NodeResources("g1", cpus=64, gpus={"a100": 4} | others)]
    for kind, count in ({"a100": 4} | others).items():
        running = {"state": RUNNING, "start_s": NOW, "time_limit_s": 48 * HOUR}
        site.slurm.add("", gpus=count, gpu_kind=kind, **running)
    site.slurm.add("12h", gpus=4, gpu_kind=gpu_kind)
    site.cycle()
    assert site.planner.held == 0  # nothing will be free, so the job waits for no slot
    site.slurm.change(100, time_limit_s=HOUR)
    site.cycle()
    assert site.planner.held == 1


@pytest.mark.parametrize(("tasks", "run_s", "is_held"), [(1, 48, True), (16, 48, False), (320, 3, False)])
def test_all_pending_tasks_of_an_urgent_array_take_resources(tasks: int, run_s: int, is_held: bool) -> None:
    site = Site(cpus=64)
    site.slurm.add("", state=RUNNING, start_s=NOW, time_limit_s=2 * HOUR, cpus=64)
    array = {"array_job_id": 777, "array_tasks": f"0-{tasks - 1}", "tasks": tasks}
    site.slurm.add("", time_limit_s=run_s * HOUR, cpus=4, **array)
    site.slurm.add("12h", cpus=60)
    site.cycle()
    assert (site.planner.held == 1) == is_held


def test_all_tasks_of_a_deferrable_array_need_room() -> None:
    site = Site(cpus=64)
    site.slurm.add("", state=RUNNING, start_s=NOW, time_limit_s=48 * HOUR, cpus=32)
    array = {"array_job_id": 777, "array_tasks": "0-7", "tasks": 8}
    site.slurm.add("12h", cpus=4, **array)
    other = site.slurm.add("5h", cpus=4)
    site.cycle()
    starts_s = sorted(site.planner.jobs[one].planned_start_s for one in (777, other))
    assert starts_s[0] == CHEAP_S < starts_s[1]  # both do not fit at the same time


@pytest.mark.parametrize("has_arrivals", [False, True])
@pytest.mark.parametrize("limit_h", [48.0, 400.0])
def test_a_deferrable_array_of_more_tasks_than_free_cores_is_held(limit_h: float, has_arrivals: bool) -> None:
    site = Site(cpus=64)
    site.slurm.add("", state=RUNNING, start_s=NOW, time_limit_s=limit_h * HOUR, cpus=1)
    if has_arrivals:
        submits_s = (NOW - at * HOUR for at in range(100, 0, -1))
        site.planner.arrivals = [PastArrival("", submit_s, HOUR, "cpu=8", 0.0) for submit_s in submits_s]
    array = {"array_job_id": 777, "array_tasks": "0-999", "tasks": 1000}
    site.slurm.add("12h", cpus=1, **array)
    site.cycle()
    assert site.planner.jobs[777].planned_start_s == CHEAP_S


def test_jobs_on_draining_nodes_take_nothing_from_other_nodes() -> None:
    site = Site()
    drained = NodeResources("n1", usable=False, cpus=64, gpus={"a100": 4}, gpus_free={"a100": 4})
    site.planner._nodes = lambda: [drained, NodeResources("n2", cpus=64, cpus_free=64)]
    site.slurm.add("", state=RUNNING, start_s=NOW, time_limit_s=48 * HOUR, cpus=64)
    site.slurm.add("12h", cpus=64)
    site.cycle()
    assert site.planner.held == 1


@given(st.lists(st.frozensets(st.sampled_from("abcdefg"), max_size=3), max_size=12))
def test_pools_are_the_components_of_common_nodes(nodes: list[frozenset[str]]) -> None:
    pools = partition_pools([NodeResources(f"n{at}", names) for at, names in enumerate(nodes)])
    assert set(pools) == set().union(*nodes)
    for names in nodes:
        assert len({pools[name] for name in names}) <= 1
    assert set(pools.values()) == set(range(len(set(pools.values()))))
    for pool in set(pools.values()):  # no cut divides a pool
        members = {name for name, at in pools.items() if at == pool}
        reached = {min(members)}
        for _ in members:
            reached |= {name for names in nodes if names & reached for name in names}
        assert reached == members


@pytest.mark.parametrize(("ran_s", "left_s"), [(20.0, 10.0), (300.0, 30.0)])
def test_a_running_job_counts_until_its_predicted_end(ran_s: float, left_s: float) -> None:
    # A late job counts for a tenth of its run time more, and no other job does.
    slurm, now_s = Slurm(), NOW
    slurm.add("", state=RUNNING, start_s=now_s - ran_s)
    queue, nodes = slurm.read(), [NodeResources("n1", cpus=4)]
    kinds = resource_kinds(queue, nodes)
    rows, units = requested_units(queue, kinds)
    config = parse(CONFIG + "slot_s = 5\nmax_slack_s = 600\n")
    signals = signal_columns(config, {"price_per_kwh": prices()}, now_s)
    time_s = queue.submit_s * 0 + 30.0
    capacity = free_capacity(queue, units, rows, kinds, time_s, nodes, signals, now_s)
    assert capacity is not None
    free_from_s = capacity.start_s + 5.0 * int((capacity.units[0] == 4).argmax())
    assert free_from_s - now_s == left_s
