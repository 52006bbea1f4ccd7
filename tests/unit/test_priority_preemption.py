"""Tests of preemption for deadlines.

Only jobs that may be preempted are preempted, no preemption is useless, and the least energy
is lost.
"""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_examples import NOW, queue, running

from slurm_energy import config as configuration
from slurm_energy.priority import preemption
from slurm_energy.priority.engine import EngineState, PriorityEngine
from slurm_energy.priority.preemption import PreemptionRules, at_risk_jobs, plan_preemptions
from slurm_energy.priority.usage import DecayedUsage
from slurm_energy.scheduling.preemption import victims
from slurm_energy.slurm.queue.node_resources import NodeResources

RULES = PreemptionRules(margin_s=60.0)


def cycle(*rows):
    config = configuration.parse('[priority]\npolicy = "aurachronos"\n')
    return PriorityEngine(config, EngineState(DecayedUsage(3600.0))).cycle(queue(*rows), NOW)


def urgent(**more):
    plain = {
        "partition": "gpu",
        "gpus": 2,
        "gpu_kind": "h100",
        "time_limit_s": 600.0,
        "deadline_s": NOW + 650.0,
    }
    return plain | more


def candidate(**more):
    plain = {"partition": "gpu", "gpus": 1, "gpu_kind": "h100", "start_s": NOW - 100.0, "cpus": 4}
    return running(**(plain | more))


def node(name="h1", gpus=4, free=0, cpus_free=0, usable=True, kind="h100"):
    return NodeResources(name, frozenset({"gpu"}), usable, 16, cpus_free, {kind: gpus}, {kind: free})


def made(snapshot, nodes=None, at=None, rules=RULES):
    """Return the planned preemptions: for each favoured job, the jobs that are preempted for it."""
    running_jobs = [
        int(job) for job, state in zip(snapshot.queue.job_id, snapshot.queue.state, strict=True) if state
    ]
    places = {job: ["h1"] for job in running_jobs} | (at or {})
    return {one.job_id: one.victims for one in plan_preemptions(snapshot, nodes or [node()], places, rules)}


def test_the_jobs_that_lose_least_energy_are_preempted():
    columns = [
        urgent(),
        candidate(start_s=NOW - 500),
        candidate(start_s=NOW - 100),
        candidate(start_s=NOW - 200),
    ]
    assert made(cycle(*columns)) == {101: (103, 104)}
    found = plan_preemptions(cycle(*columns), [node(free=1)], {102: ["h1"], 103: ["h1"], 104: ["h1"]}, RULES)
    assert [one.victims for one in found] == [(103,)]
    assert found[0].lost_joules == pytest.approx(100 * cycle(*columns).predicted.power_watts[2])
    assert "least energy lost" in found[0].why


def test_jobs_are_preempted_only_for_a_deadline_at_risk():
    assert made(cycle(urgent(deadline_s=NOW + 661.0), candidate(), candidate())) == {}
    assert made(cycle(urgent(deadline_s=NOW + 659.0), candidate(), candidate())) == {101: (102, 103)}
    assert made(cycle(urgent(deadline_s=float("nan")), candidate(), candidate())) == {}
    assert made(cycle(urgent(deadline_s=NOW - 1.0), candidate(), candidate())) == {}


@pytest.mark.parametrize(
    "change",
    [{"held": True}, {"dependent": True}, {"eligible_s": NOW + 9.0}, {"fixed": True}, {"gpu_kind": ""}],
)
def test_no_job_is_preempted_for_a_job_that_could_not_start(change):
    assert made(cycle(urgent(**change), candidate(), candidate())) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"requeue": False},
        {"deadline_s": NOW + 9e5},
        {"het_job_id": 102},
        {"gpu_kind": "a100"},
        {"start_s": float("nan")},
    ],
)
def test_protected_types_of_jobs_are_not_preempted(change):
    assert made(cycle(urgent(), candidate(gpus=2, **change))) == {}
    assert made(cycle(urgent(), candidate(gpus=2, **change), candidate(gpus=3, start_s=NOW - 9e5))) == {
        101: (103,)
    }


@pytest.mark.parametrize(
    "reason", ["QOSMaxJobsPerUserLimit", "AssocGrpGRES", "ReqNodeNotAvail", "Licenses", "JobArrayTaskLimit"]
)
def test_no_job_is_preempted_for_a_blocked_job(reason):
    assert made(cycle(urgent(reason="Resources"), candidate(gpus=4))) == {101: (102,)}
    assert made(cycle(urgent(reason=reason), candidate(gpus=4))) == {}


def test_no_job_is_preempted_for_a_job_started_since_the_snapshot():
    snapshot = cycle(urgent(), candidate(gpus=4))
    assert made(snapshot) == {101: (102,)}
    assert made(snapshot, at={101: ["h1"]}) == {}


def test_no_job_is_preempted_if_enough_is_free_or_all_are_too_few():
    assert made(cycle(urgent(), candidate(), candidate()), [node(free=2)]) == {}
    assert made(cycle(urgent(gpus=3), candidate(), candidate())) == {}
    assert made(cycle(urgent(), candidate(), candidate()), [node(usable=False)]) == {}
    assert made(cycle(urgent(partition="other"), candidate(), candidate())) == {}


def test_freed_resources_are_on_one_node():
    columns = cycle(
        urgent(), candidate(), candidate(), candidate(start_s=NOW - 900), candidate(start_s=NOW - 900)
    )
    nodes, at = [node("h1"), node("h2")], {102: ["h1"], 103: ["h2"], 104: ["h2"], 105: ["h1"]}
    assert set(made(columns, nodes, at)[101]) == {102, 105}
    assert made(columns, nodes, at | {105: ["h3"]}) == {101: (103, 104)}
    wide = cycle(
        urgent(nodes=2), candidate(), candidate(), candidate(start_s=NOW - 900), candidate(start_s=NOW - 900)
    )
    assert set(made(wide, nodes, at)[101]) == {102, 103}


def test_protected_jobs_and_partitions_are_not_preempted():
    columns = cycle(
        urgent(),
        candidate(gpus=2),
        candidate(gpus=2, start_s=NOW - 900),
        candidate(gpus=2, start_s=NOW - 990),
    )
    assert made(columns, rules=PreemptionRules(60.0, protected={102: NOW})) == {101: (103,)}
    assert made(columns, rules=PreemptionRules(60.0, protected_partitions={"gpu"})) == {}
    assert made(columns, rules=PreemptionRules(60.0, already_served={101: NOW})) == {}
    assert made(columns, rules=PreemptionRules(60.0, partitions=["other"])) == {}
    assert made(columns, rules=PreemptionRules(60.0, partitions=["gpu"])) == {101: (102,)}
    assert made(columns, at={102: []}) == {101: (103,)}


def test_a_cycle_preempts_a_bounded_number():
    columns = cycle(urgent(job_id=1, gpus=2), urgent(job_id=2, gpus=2), *(candidate() for _ in range(4)))
    assert {len(v) for v in made(columns, rules=PreemptionRules(60.0, max_victims=2)).values()} == {2}
    assert len(made(columns, rules=PreemptionRules(60.0, max_victims=2))) == 1
    assert made(columns, rules=PreemptionRules(60.0, max_victims=1)) == {}
    both = made(columns)
    assert set(both) == {1, 2}
    assert not set(both[1]) & set(both[2])


AGED = {"partition": "gpu", "gpus": 4, "gpu_kind": "h100", "submit_s": NOW - 2e5}


@pytest.mark.parametrize(
    ("change", "helped"),
    [
        ({}, False),
        ({"gpu_kind": "a100"}, True),
        ({"partition": "cpu"}, True),
        ({"held": True}, True),
        ({"submit_s": NOW - 200.0}, True),
        ({"gpus": 1}, True),  # fits in the free resources
    ],
)
def test_no_job_is_preempted_while_an_aged_job_waits_for_the_same(change, helped):
    snapshot = cycle(urgent(), candidate(), candidate(), candidate(), AGED | change)
    assert bool(made(snapshot, [node("h1", free=1), node("a1", kind="a100")])) == helped


def test_jobs_are_preempted_for_the_deadline_of_an_aged_job():
    assert made(cycle(urgent(submit_s=NOW - 2e5), candidate(), candidate(), candidate(), candidate())) == {
        101: (102, 103)
    }


def test_no_job_is_preempted_if_cores_would_still_be_missing():
    rows = [urgent(cpus=8), candidate(cpus=4), candidate(cpus=3), candidate(gpus=0, gpu_kind="", cpus=9)]
    assert made(cycle(*rows), [node(gpus=2)]) == {}
    assert made(cycle(*rows), [node(gpus=2, cpus_free=1)]) == {101: (103, 102)}


@pytest.mark.parametrize(("second", "found"), [("gpu", {101: (102, 103)}), ("slow", {})])
def test_the_nodes_of_a_job_belong_to_one_partition(second, found):
    rows = [
        urgent(partition="gpu,slow", nodes=2, gpus=4),
        *(candidate(gpus=2, job_id=job) for job in (102, 103)),
    ]
    nodes = [
        NodeResources("h1", frozenset({"gpu"}), True, 16, 8, {"h100": 2}, {"h100": 0}),
        NodeResources("h2", frozenset({second}), True, 16, 8, {"h100": 2}, {"h100": 0}),
    ]
    assert made(cycle(*rows), nodes, {103: ["h2"]}) == found


def test_no_job_is_preempted_for_a_component():
    assert made(cycle(urgent(het_job_id=101), candidate(), candidate(), candidate(), candidate())) == {}


def test_hopeless_deadlines_cost_no_search(monkeypatch):
    searched = []
    monkeypatch.setattr(
        preemption, "victims", lambda running, *args: searched.append(len(running)) or victims(running, *args)
    )
    candidates = [candidate(gpus=0, gpu_kind="", cpus=1) for _ in range(8)]
    cores = [urgent(gpus=0, gpu_kind="", cpus=8) for _ in range(9)]
    assert made(cycle(*cores, *candidates)) == {}
    assert searched == []  # all eight would be needed, more than one cycle preempts
    assert made(cycle(*[urgent(gpus=1) for _ in range(9)], *[candidate() for _ in range(9)])).keys() == {
        101, 102, 103, 104,
    }  # fmt: skip
    assert len(searched) == 4


def test_resources_freed_for_one_job_are_not_promised_to_another():
    columns = cycle(urgent(job_id=1), urgent(job_id=2), candidate(job_id=7, gpus=3))
    assert made(columns, [node(gpus=4, free=1)]) == {1: (7,)}
    columns = cycle(urgent(job_id=1), urgent(job_id=2), candidate(job_id=7, gpus=4))
    assert made(columns, [node()]) == {1: (7,)}  # and the rest is enough for the other one
    assert len(at_risk_jobs(columns, RULES)) == 2
    columns = cycle(
        urgent(job_id=1), urgent(job_id=2), candidate(job_id=7), candidate(job_id=8, start_s=NOW - 200.0)
    )
    assert made(columns, [node(gpus=4, free=1)]) == {1: (7,)}


def test_cores_are_freed_for_jobs_without_gpus():
    needs = {"partition": "gpu", "cpus": 6, "time_limit_s": 600.0, "deadline_s": NOW + 610.0}
    columns = cycle(needs, candidate(cpus=4), candidate(cpus=8, start_s=NOW - 1.0))
    assert made(columns) == {101: (103,)}
    assert made(columns, [node(cpus_free=6)]) == {}


GUESTS = st.lists(
    st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 10_000), st.sampled_from(["h1", "h2"])),
    max_size=6,
)


@given(GUESTS, st.integers(1, 4), st.integers(0, 2))
def test_victims_are_requeueable_sufficient_and_minimal(candidates, gpus, free):
    rows = [candidate(gpus=g, requeue=may, start_s=NOW - ran) for g, may, ran, _ in candidates]
    snapshot = cycle(urgent(gpus=gpus), *rows)
    at = {102 + number: [name] for number, (*_, name) in enumerate(candidates)}
    nodes = [node("h1", 8, free), node("h2", 8, free)]
    found = plan_preemptions(snapshot, nodes, at, PreemptionRules(60.0, max_victims=9))
    held = {102 + number: g for number, (g, _, _, _) in enumerate(candidates)}
    may = {102 + number for number, (_, may, _, _) in enumerate(candidates) if may}

    def enough(jobs):
        return any(free + sum(held[j] for j in jobs if at[j] == [name]) >= gpus for name in ("h1", "h2"))

    if not found:
        assert enough([]) or not enough(may)
        return
    (one,) = found
    victims = set(one.victims)
    assert victims <= may
    assert not enough([])
    assert enough(victims)
    assert not any(enough(victims - {job}) for job in victims)
    watts = dict(zip(snapshot.queue.job_id.tolist(), snapshot.predicted.power_watts.tolist(), strict=True))
    lost = {job: watts[job] * candidates[job - 102][2] for job in may}
    assert one.lost_joules == pytest.approx(sum(lost[job] for job in victims), abs=1e-6)
    sets = chain.from_iterable(combinations(sorted(may), n) for n in range(1, len(may) + 1))
    least = min(sum(lost[job] for job in jobs) for jobs in sets if enough(jobs))
    assert one.lost_joules == pytest.approx(least, abs=1e-6)
