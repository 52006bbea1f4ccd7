"""Tests of jobs that offer several shapes (GPU types and numbers of GPUs).

The tests check how these jobs are ranked, and that the chosen shape is always one that the job offers.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_examples import NOW, queue, running

from slurm_energy import config as configuration
from slurm_energy import scheduling
from slurm_energy.oracle.history import History, ObservedRun
from slurm_energy.oracle.history.queue_forecast import predict_many
from slurm_energy.policies.shapes import GpuShape
from slurm_energy.priority import explanation, offered_shapes
from slurm_energy.priority.engine import EngineState, PriorityEngine
from slurm_energy.priority.interventions import AssignedShape, InterventionState
from slurm_energy.priority.offered_shapes import OfferedShapeProvider
from slurm_energy.priority.prediction import QueuePredictor
from slurm_energy.priority.usage import DecayedUsage
from slurm_energy.slurm.queue.node_resources import NodeResources

A4, A2, H2, H1 = GpuShape("a100", 4), GpuShape("a100", 2), GpuShape("h100", 2), GpuShape("h100", 1)
BOTH = "gpu:a100:4,gpu:h100:2"


def node(name, kind, gpus, free, partition="gpu", cpus_free=64, **more):
    return NodeResources(
        name, frozenset({partition}), True, 64, cpus_free, {kind: gpus}, {kind: free}, **more
    )


def nodes(a100=4, h100=8):
    return [node("a1", "a100", 4, a100), node("h1", "h100", 8, h100)]


def offering(text=BOTH, **more):
    flags = {"ENERGY_ALTERNATIVES": text, "ENERGY_MODEL": "resnet50"}
    return {"partition": "gpu", "gpus": 4, "gpu_kind": "a100", "flags": flags} | more


def cycle(columns, found, policy="zeus", intervention_state=None):
    config = configuration.parse(f'[priority]\npolicy = "{policy}"\n')
    intervention_state = intervention_state or InterventionState()
    shaper = OfferedShapeProvider(
        QueuePredictor(config),
        lambda: found,
        intervention_state.blocked_shapes,
        intervention_state.keeps_request,
    )
    return PriorityEngine(config, EngineState(DecayedUsage(3600.0)), None, shaper).cycle(columns, NOW)


def choices(snapshot):
    return offered_shapes.choose_shapes(snapshot, scheduling.policy(snapshot.policy).rank)


def chosen(snapshot):
    """Return the shape (number and type of GPUs) of each job that starts now, by job id."""
    return {choice.job_id: choice.shape for choice in choices(snapshot) if choice.starts_now}


def waiting(snapshot):
    """Return the chosen GPU shape of each job that must wait, by job id.

    A GPU shape is a kind and number of GPUs. A job must wait if it does not start now.
    """
    return {choice.job_id: choice.shape for choice in choices(snapshot) if not choice.starts_now}


def test_the_fitting_shape_with_the_least_edp_is_chosen():
    columns = queue(offering())
    assert chosen(cycle(columns, nodes())) == {101: H2}
    assert chosen(cycle(columns, nodes(h100=1))) == {101: A4}
    assert chosen(cycle(columns, nodes(a100=3))) == {101: H2}
    assert chosen(cycle(columns, nodes(a100=3, h100=1))) == {}


def test_a_job_waits_in_the_best_of_all_its_shapes():
    assert waiting(cycle(queue(offering()), nodes(a100=3, h100=1))) == {101: H2}
    assert waiting(cycle(queue(offering(held=True)), nodes(h100=1))) == {101: H2}
    assert waiting(cycle(queue(offering()), nodes())) == {}


@pytest.mark.parametrize(("limit_s", "shape"), [(60.0, H2), (40 * 3600.0, A4)])
def test_metis_waits_for_gpus_that_a_running_job_frees_soon(limit_s, shape):
    """In the live queue, `metis` knows the free GPUs and the expected ends of running jobs.

    `metis` therefore lets a job wait for GPUs that a running job frees soon.
    """
    holder = running(partition="gpu", gpus=8, gpu_kind="h100", start_s=NOW, time_limit_s=limit_s)
    holder |= {"end_s": NOW + limit_s}
    snapshot = cycle(queue(offering(), holder), nodes(h100=0), policy="metis")
    assert snapshot.scheduled.capacity.gpus.tolist() == [8]
    assert {**chosen(snapshot), **waiting(snapshot)} == {101: shape}
    assert cycle(queue(offering()), nodes()).scheduled.capacity is None  # zeus does not look ahead


def test_each_shape_is_predicted_for_its_own_gpus():
    snapshot = cycle(queue(offering("gpu:a100:2,gpu:a100:4,gpu:h100:2")), nodes())
    table = snapshot.shapes.table
    two, four, other = table.time_s.tolist()
    assert two == pytest.approx(2 * four, rel=0.1)
    assert other < two
    assert [snapshot.shapes.text(row) for row in range(3)] == ["gpu:a100:2", "gpu:a100:4", "gpu:h100:2"]


def remembering(*runs):
    history = History()
    for number, (kind, gpus, seconds, watts) in enumerate(runs):
        for repeated in range(4):
            history.learn(
                ObservedRun(
                    end=NOW - 1000 + 10 * number + repeated,
                    duration_s=seconds,
                    energy_joules=seconds * watts,
                    user="alice",
                    name="train",
                    nodes=1,
                    cpus=1,
                    gpus=gpus,
                    gpu_kind=kind,
                )
            )
    return lambda columns: predict_many(history, columns)


def figures(offered, *runs, model=None, limit=7200.0):
    """Return (time, watts) of a job in each GPU shape that the job offers.

    A GPU shape is a kind and number of GPUs. `runs` are earlier runs of the program of the job.
    """
    flags = {"ENERGY_ALTERNATIVES": offered} | ({"ENERGY_MODEL": model} if model else {})
    config = configuration.parse('[priority]\npolicy = "zeus"\n')
    history = remembering(*runs) if runs else None
    shaper = OfferedShapeProvider(QueuePredictor(config, history), nodes)
    columns = queue(offering(flags=flags, name="train", time_limit_s=limit))
    table = (
        PriorityEngine(config, EngineState(DecayedUsage(3600.0)), history, shaper)
        .cycle(columns, NOW)
        .shapes.table
    )
    return list(zip(table.time_s.tolist(), table.power_watts.tolist(), strict=True))


def test_measurements_in_a_shape_count_for_it():
    known = ("a100", 4, 1000.0, 1200.0), ("h100", 2, 700.0, 900.0)
    assert figures(BOTH, *known) == [pytest.approx(one[2:], rel=0.01) for one in known]


def test_an_unmeasured_shape_is_derived_from_a_measured_one():
    four, two, other = figures("gpu:a100:4,gpu:a100:2,gpu:h100:2", ("a100", 4, 1000.0, 1200.0))
    assert four == pytest.approx((1000.0, 1200.0), rel=0.01)
    assert two == pytest.approx((1000.0 * 2**0.85, 600.0), rel=0.01)
    assert other == pytest.approx((1000.0 * 2**0.85 * 1555 / 3350, 1200.0 * 1400 / 1600), rel=0.01)
    (a_s, a_w), (h_s, h_w) = figures(BOTH, model="resnet50")
    known, other = figures(BOTH, ("a100", 4, 1000.0, 1200.0), model="resnet50")
    assert known == pytest.approx((1000.0, 1200.0), rel=0.01)
    assert other == pytest.approx((1000.0 * h_s / a_s, 1200.0 * h_w / a_w), rel=0.01)


def test_unmeasured_shapes_differ_by_the_peaks_of_the_gpus():
    (two_s, two_w), (four_s, four_w) = figures("gpu:a100:2,gpu:a100:4")
    assert two_s / four_s == pytest.approx(2**0.85)
    assert four_w / two_w == pytest.approx(2.0)
    assert math.sqrt(two_s * four_s) == pytest.approx(3600.0)  # half the limit, as in the nameplate
    (two_s, _), (four_s, _) = figures("gpu:a100:2,gpu:a100:4", ("v100", 8, 500.0, 2000.0))
    assert two_s / four_s == pytest.approx(2**0.85, rel=0.01)
    assert math.sqrt(two_s * four_s) == pytest.approx(500.0, rel=0.05)


def test_no_shape_takes_longer_than_the_limit():
    known = ("h100", 2, 1000.0, 900.0)
    assert figures("gpu:h100:2,gpu:a100:1", known, limit=1200.0)[1][0] == 1200.0


def test_a_job_that_fits_nowhere_is_ranked_by_its_best_shape():
    plain = {"partition": "gpu", "time_limit_s": 10.0, "gpus": 1, "gpu_kind": "a100"}
    columns = queue(plain | {"job_id": 7}, offering(job_id=8), plain | {"job_id": 9, "time_limit_s": 3e6})
    for found in (nodes(0, 0), nodes()):
        snapshot = cycle(columns, found)
        assert snapshot.queue.job_id[snapshot.rows[snapshot.order]].tolist() == [7, 8, 9]
    explained = explanation.Explainer(cycle(columns, nodes(0, 2))).job(1)
    assert [(s["text"], s["fits"], s["chosen"]) for s in explained["shapes"]] == [
        ("gpu:a100:4", False, False),
        ("gpu:h100:2", True, True),
    ]
    assert explained["predicted"]["edp_js"] == pytest.approx(explained["shapes"][1]["edp_js"])


def test_resources_of_earlier_jobs_do_not_count_as_free():
    first = {"partition": "gpu", "gpus": 7, "gpu_kind": "h100", "time_limit_s": 1.0}
    assert chosen(cycle(queue(first, offering()), nodes())) == {}  # not available at its turn
    assert chosen(cycle(queue(first | {"held": True}, offering()), nodes())) == {102: H2}
    assert chosen(cycle(queue(first | {"reason": "AssocGrpCpuLimit"}, offering()), nodes())) == {102: H2}


@pytest.mark.parametrize(
    "change",
    [
        {"held": True},
        {"dependent": True},
        {"eligible_s": NOW + 60},
        {"fixed": True},
        {"tasks": 3, "array_job_id": 101},
        {"het_job_id": 101},
        {"partition": "cpu"},
        {"cpus": 65},
        {"nodes": 2},
        {"flags": {"ENERGY_ALTERNATIVES": "gpu:h100:2;gpu:h100:64"}},
        {"flags": {}},
        running(start_s=NOW - 5),
    ],
)
def test_no_shape_is_assigned_in_which_the_job_could_not_start(change):
    assert chosen(cycle(queue(offering(**change)), nodes())) == {}


def test_free_gpus_must_be_on_one_node_and_it_must_be_up():
    spread = [node("h1", "h100", 8, 1), node("h2", "h100", 8, 1)]
    assert chosen(cycle(queue(offering()), spread)) == {}
    assert chosen(cycle(queue(offering("gpu:h100:1", nodes=2)), spread)) == {101: H1}
    apart = [spread[0], node("h2", "h100", 8, 1, "slow")]
    assert chosen(cycle(queue(offering("gpu:h100:1", nodes=2, partition="gpu,slow")), apart)) == {}
    down = NodeResources("h1", frozenset({"gpu"}), False, 64, 64, {"h100": 8}, {"h100": 8})
    assert chosen(cycle(queue(offering()), [down, nodes()[0]])) == {101: A4}


def test_nodes_are_read_once_and_only_for_jobs_that_offer_shapes():
    asked = []
    config = configuration.parse('[priority]\npolicy = "zeus"\n')
    shaper = OfferedShapeProvider(QueuePredictor(config), lambda: asked.append(1) or nodes())
    made = PriorityEngine(config, EngineState(DecayedUsage(3600.0)), None, shaper)
    made.cycle(queue({}, {"partition": "gpu", "gpus": 1}), NOW)
    assert asked == []
    made.cycle(queue(offering(), offering(), {}), NOW)
    assert asked == [1]


def test_without_nodes_jobs_are_ranked_as_requested():
    snapshot = cycle(queue(offering(), {}), None)
    assert len(snapshot.shapes.gpu_kind) == 2
    assert choices(snapshot) == []


def test_a_blocked_shape_counts_as_not_fitting():
    intervention_state = InterventionState(blocked_shapes={(101, H2): NOW})
    assert chosen(cycle(queue(offering()), nodes(), intervention_state=intervention_state)) == {101: A4}


def test_a_job_that_keeps_its_request_is_ranked_by_it():
    intervention_state = InterventionState(assigned={101: AssignedShape(NOW, None, NOW)})
    snapshot = cycle(queue(offering()), nodes(), intervention_state=intervention_state)
    assert choices(snapshot) == []
    assert snapshot.shapes.table.gpus.tolist() == [4]


def test_a_deadline_takes_the_fastest_shape():
    slow = offering("gpu:h100:1,gpu:a100:4", deadline_s=NOW + 3000.0)
    assert chosen(cycle(queue(slow), nodes(), "aurachronos")) == {101: A4}


def test_jobs_that_start_now_come_first():
    first = offering("gpu:a100:4", deadline_s=NOW + 9e5)
    snapshot = cycle(queue(first, offering("gpu:h100:1")), nodes(a100=0), "aurachronos")
    assert [(choice.job_id, choice.starts_now) for choice in choices(snapshot)] == [(102, True), (101, False)]


KINDS = st.sampled_from(["a100", "h100", "v100", ""])
SHAPE = st.tuples(st.sampled_from(["a100", "h100", "v100"]), st.integers(1, 9)).map(lambda s: GpuShape(*s))
JOB = st.builds(
    lambda shapes, limit, gpus, kind, nodes: offering(
        ",".join(shape.text for shape in shapes), time_limit_s=limit, gpus=gpus, gpu_kind=kind, nodes=nodes
    ),
    st.lists(SHAPE, max_size=8),
    st.floats(1, 1e6),
    st.integers(0, 9),
    KINDS,
    st.integers(1, 3),
)
NODE = st.builds(
    lambda kind, gpus, free: (kind, gpus, min(free, gpus)), KINDS, st.integers(0, 8), st.integers(0, 8)
)


@given(
    st.lists(JOB, max_size=6), st.lists(NODE, max_size=4), st.sampled_from(["zeus", "blend", "aurachronos"])
)
def test_choices_are_offered_and_fit_the_free_resources(jobs, there, policy):
    found = [node(f"n{number}", *one) for number, one in enumerate(there)]
    snapshot = cycle(queue(*jobs), found, policy)
    taken = {}
    for choice in choices(snapshot):
        row = choice.job_id - 101
        there = [n for n in found if n.gpus.get(choice.shape.gpu_kind, 0) >= choice.shape.gpus]
        assert len(there) >= jobs[row]["nodes"]
        assert choice.shape.text in jobs[row]["flags"]["ENERGY_ALTERNATIVES"].split(",")
        if not choice.starts_now:
            continue
        able = [n for n in found if n.gpus_free.get(choice.shape.gpu_kind, 0) >= choice.shape.gpus]
        assert len(able) >= jobs[row]["nodes"]
        kind = choice.shape.gpu_kind
        taken[kind] = taken.get(kind, 0) + choice.shape.gpus * jobs[row]["nodes"]
        assert "\n" not in offered_shapes.choice_reason(snapshot, choice)
    for kind, count in taken.items():
        assert count <= sum(n.gpus_free.get(kind, 0) for n in found)
    assert np.all(np.isfinite(snapshot.shapes.table.time_s))
