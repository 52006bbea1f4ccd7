"""Tests of attacks on the queue: a user tries to move a long job forward with cheap jobs.

The tests bound the gain of the attacker and the loss of honest users.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_examples import NOW, queue, running

from slurm_energy import config as configuration
from slurm_energy.oracle.history import History, ObservedRun, RunEnding
from slurm_energy.oracle.history.lower_bounds import bounds_many
from slurm_energy.oracle.history.queue_forecast import predict_many
from slurm_energy.oracle.history.track_record import bounded, misprediction_factor, overrun, rounded_up
from slurm_energy.priority import explanation
from slurm_energy.priority.engine import EngineState, PriorityEngine
from slurm_energy.priority.offered_shapes import OfferedShapeProvider
from slurm_energy.priority.prediction import QueuePredictor
from slurm_energy.priority.prediction_guard import Mispredictions, PredictionGuard
from slurm_energy.priority.usage import DecayedUsage
from slurm_energy.slurm.queue.node_resources import NodeResources

HOUR, DAY = 3600.0, 86400.0
POLICIES = ("zeus", "hades", "pollux", "sjf", "themis", "blend", "aurachronos")


class Cluster:
    """A priority engine with a history, without Slurm."""

    def __init__(self, policy="zeus", history=None):
        self.history = history or History()
        self.engine_state = EngineState(DecayedUsage(7 * DAY))
        guard = PredictionGuard(self.engine_state.mispredictions, self.bounds)
        settings = configuration.parse(f'[priority]\npolicy = "{policy}"\n')
        self.engine = PriorityEngine(settings, self.engine_state, self.forecast, guard=guard)

    def forecast(self, columns):
        return predict_many(self.history, columns)

    def bounds(self, *given):
        return bounds_many(self.history, *given)

    def ran(
        self, seconds, name="train42", user="mallory", limit=DAY, watts=100.0, times=1, apart_s=0.0, **more
    ):
        """Add finished runs of a user to the history. Their ends are `apart_s` seconds apart."""
        for left in reversed(range(times)):
            more = {"nodes": 1, "cpus": 64, "gpus": 0, "account": "physics", "partition": "cpu"} | more
            end = NOW - 1000 - left * apart_s
            run = ObservedRun(end, seconds, energy_joules=watts * seconds, user=user, name=name,
                      time_limit_s=limit, **more)  # fmt: skip
            self.history.learn(run)

    def place(self, *rows, now=NOW):
        """Return the place (rank in the queue) of the job in the first row. The first place is 1."""
        return int(self.engine.cycle(queue(*rows, now=now), now).place[0])


LONG = {"user": "mallory", "uid": 7, "name": "train42", "time_limit_s": DAY, "cpus": 64}
HONEST = [
    *({"user": f"u{n}", "uid": 100 + n, "name": "fit", "time_limit_s": 600.0} for n in range(3)),
    *({"user": f"v{n}", "uid": 200 + n, "name": "md", "time_limit_s": DAY} for n in range(3)),
    *({"user": f"w{n}", "uid": 300 + n, "name": "cfd", "time_limit_s": 6 * HOUR} for n in range(3)),
]


def decoys(cluster, kind):
    attacks = {
        "one second, same limit": lambda: cluster.ran(1.0, times=3),
        "one second, short limit": lambda: cluster.ran(1.0, limit=60.0, times=3),
        "five minutes, same limit": lambda: cluster.ran(300.0, times=3),
        "another name": lambda: cluster.ran(1.0, name="other", times=3),
        "the same script": lambda: cluster.ran(1.0, fingerprint="f" * 16, times=3),
        "an array of a thousand seconds": lambda: cluster.ran(1.0, times=1000),
        "an array of short limits": lambda: cluster.ran(60.0, limit=600.0, times=500),
        "failing at once": lambda: cluster.ran(0.5, ending=RunEnding.FAILED, times=50),
        "cancelled at once": lambda: cluster.ran(0.5, ending=RunEnding.CANCELLED, times=50),
        "an array of single cores": lambda: cluster.ran(60.0, cpus=1, times=1400),
        "wide for a moment": lambda: cluster.ran(60.0, nodes=50, cpus=3200, times=3),
        "idle": lambda: cluster.ran(300.0, watts=5.0, times=3),
    }
    attacks[kind]()


KINDS = (
    "one second, same limit",
    "one second, short limit",
    "five minutes, same limit",
    "another name",
    "the same script",
    "an array of a thousand seconds",
    "an array of short limits",
    "failing at once",
    "cancelled at once",
    "an array of single cores",
    "wide for a moment",
    "idle",
)


@functools.cache
def history_of_decoys(kind):
    """Return a history of decoy runs, for tests that do not change the history.

    Decoy runs are runs with which a user tries to deceive the prediction. The history is shared between
    tests, because learning hundreds of runs takes most of their time.
    """
    cluster = Cluster()
    decoys(cluster, kind)
    return cluster.history


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_decoys_gain_a_job_at_most_one_place(policy, kind):
    fresh, cheated = Cluster(policy), Cluster(policy, history_of_decoys(kind))
    assert cheated.place(LONG, *HONEST) >= fresh.place(LONG, *HONEST) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_decoys_do_not_hide_real_runs(kind):
    fresh, cheated = Cluster(), Cluster()
    for cluster in (fresh, cheated):
        cluster.ran(20 * HOUR, watts=400.0, times=2)
    decoys(cheated, kind)
    others = [dict(row) for row in HONEST]
    assert cheated.place(LONG, *others) >= fresh.place(LONG, *others) - 1
    result = cheated.engine.cycle(queue(LONG), NOW).predicted
    assert result.time_s[0] >= 20 * HOUR * 0.9
    assert result.power_watts[0] >= 300.0


SIDE_BY_SIDE = {
    "single cores": {"cpus": 1},
    "single cores, one after the other started": {"cpus": 1, "apart_s": 0.5},
    "whole nodes": {},
    "several nodes each": {"cpus": 256, "nodes": 4},
    "another partition": {"cpus": 1, "partition": "long"},
    "another name": {"cpus": 1, "name": "other"},
    "the same script": {"cpus": 1, "fingerprint": "f" * 16},
    "without energy": {"cpus": 1, "watts": 0.0},
}


@functools.cache
def history_side_by_side(kind, seconds):
    cluster = Cluster()
    cluster.ran(seconds, times=512, **SIDE_BY_SIDE[kind])
    return cluster.history


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", SIDE_BY_SIDE)
@pytest.mark.parametrize(
    "seconds", [60.0, *(pytest.param(s, marks=pytest.mark.slow) for s in (240.0, 1200.0))]
)
def test_concurrent_decoys_account_for_no_more_than_real_time(policy, kind, seconds):
    """Cheap jobs that run at the same time cannot move a user's long job far ahead in the queue.

    A user may submit many short one-core jobs as decoys, to lower the predicted time of a long job.
    Concurrent decoys count for no more than the elapsed time. The decoys request `--exclusive` or `--mem=0`,
    or share a node.
    """
    long, others = LONG | {"cpus": 1}, [honest | {"cpus": 1} for honest in HONEST]
    fresh, cheated = Cluster(policy), Cluster(policy, history_side_by_side(kind, seconds))
    assert cheated.place(long, *others) >= fresh.place(long, *others) - 1
    assert cheated.engine.cycle(queue(long), NOW).predicted.time_s[0] >= DAY / 2


HOLDING = {
    "whole node": ({"held_cpus": 64}, {"held_cpus": 1}, {"held_cpus": 64}),
    "all memory": (
        {"memory_mib": 512_000},
        {"held_cpus": 1, "memory_mib": 1000},
        {"held_cpus": 1, "memory_mib": 512_000},
    ),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", HOLDING)
def test_decoys_that_share_nodes_do_not_shorten_a_job_that_takes_one(policy, kind):
    """A user's cheap one-core jobs do not shorten the predicted time of a long job.

    The long job takes one node alone. Before, the user runs short jobs with the same name as decoys. They
    use one core each, run one after the other for eight hours, and cost little in comparison with what
    the long job occupies. The long job moves up at most one place in the queue, and its predicted time is
    half a day.
    """
    held, cheap, _ = HOLDING[kind]
    long, others = LONG | {"cpus": 1} | held, [honest | {"cpus": 1} for honest in HONEST]
    fresh, cheated = Cluster(policy), Cluster(policy)
    cheated.ran(300.0, cpus=1, times=96, apart_s=300.0, **cheap)
    assert cheated.place(long, *others) >= fresh.place(long, *others) - 1
    assert cheated.engine.cycle(queue(long), NOW).predicted.time_s[0] == DAY / 2


@pytest.mark.parametrize("kind", HOLDING)
def test_runs_that_took_a_node_count_for_a_job_that_takes_one(kind):
    held, _, real = HOLDING[kind]
    cluster = Cluster()
    cluster.ran(300.0, cpus=1, times=96, apart_s=300.0, **real)
    assert cluster.engine.cycle(queue(LONG | {"cpus": 1} | held), NOW).predicted.time_s[0] < HOUR


def test_runs_of_unknown_memory_count_as_before():
    cluster = Cluster()
    cluster.ran(300.0, cpus=1, times=96, apart_s=300.0)
    job = LONG | {"cpus": 1, "memory_mib": 512_000}
    assert cluster.engine.cycle(queue(job), NOW).predicted.time_s[0] < HOUR


def test_a_run_on_a_whole_node_outweighs_cheap_decoys():
    """The prediction weights each earlier run by the CPUs that it held.

    The number of CPUs that a run requested has no effect. In the test, two long runs request one CPU but
    hold a whole node. They outweigh many cheap runs, which a user may submit as decoys.
    """
    cluster = Cluster()
    cluster.ran(20 * HOUR, cpus=1, held_cpus=64, times=2, apart_s=20 * HOUR)
    cluster.ran(300.0, cpus=1, held_cpus=1, times=500, apart_s=300.0)
    long = LONG | {"cpus": 1, "held_cpus": 64}
    assert cluster.engine.cycle(queue(long), NOW).predicted.time_s[0] > 0.9 * 20 * HOUR


@pytest.mark.parametrize("partition", ["cpu", "long"])
def test_decoys_concurrent_with_a_long_run_do_not_hide_it(partition):
    cluster = Cluster()
    cluster.ran(240.0, cpus=1, times=512, apart_s=100.0)
    cluster.ran(20 * HOUR, partition=partition, times=2)
    assert cluster.engine.cycle(queue(LONG), NOW).predicted.time_s[0] >= 0.9 * 20 * HOUR


def test_users_with_fewer_runs_are_trusted_about_as_soon():
    """Users with few earlier runs get predictions similar to those of users with many runs.

    Otherwise the first user to run jobs would be ranked first and delay the others.
    """
    cluster = Cluster()
    for user, times in (("alice", 48), ("bob", 4)):
        for slot in range(4):
            cluster.ran(3.0, user=user, limit=120.0, times=times // 4, apart_s=3.0 + slot / 100, gpus=1)
    rows = [{"user": user, "name": "train42", "time_limit_s": 120.0, "gpus": 1} for user in ("alice", "bob")]
    alice, bob = cluster.engine.cycle(queue(*rows), NOW).predicted.time_s
    assert alice < bob < 3.5 * alice


def test_naming_a_small_model_does_not_shorten_a_job():
    cluster = Cluster()
    claims = LONG | {"gpus": 1, "gpu_kind": "a100", "flags": {"ENERGY_MODEL": "ncf"}}
    result = cluster.engine.cycle(queue(claims, LONG | {"gpus": 1, "gpu_kind": "a100"}), NOW).predicted
    assert result.time_s[0] >= result.time_s[1]
    assert result.power_watts[0] >= result.power_watts[1]


def test_tight_limits_are_trusted_after_few_runs():
    cluster = Cluster()
    cluster.ran(300.0, limit=900.0, watts=200.0, times=3)
    result = cluster.engine.cycle(queue(LONG | {"time_limit_s": 900.0}), NOW).predicted
    assert result.time_s[0] == pytest.approx(300.0, rel=0.2)
    assert result.power_watts[0] == pytest.approx(200.0, rel=0.3)


def test_generous_limits_are_trusted_after_enough_work():
    cluster = Cluster()
    cluster.ran(300.0, times=3)
    before = cluster.engine.cycle(queue(LONG), NOW).predicted.time_s[0]
    cluster = Cluster()
    cluster.ran(300.0, times=403, apart_s=300.0)
    after = cluster.engine.cycle(queue(LONG), NOW).predicted.time_s[0]
    assert before == DAY / 2
    assert after < HOUR


def test_users_who_exhaust_limits_are_predicted_to_do_so_again():
    cluster = Cluster()
    cluster.ran(DAY, name="other", times=3)
    result = cluster.engine.cycle(queue(LONG), NOW).predicted
    assert result.time_s[0] > 0.9 * DAY


# --- the misprediction factor ------------------------------------------------------------------------------


def test_a_job_past_its_prediction_counts_while_it_runs():
    cluster = Cluster()
    cluster.engine.cycle(queue(LONG | {"time_limit_s": 2 * HOUR}), NOW)
    started = running(**LONG | {"time_limit_s": 2 * HOUR}, start_s=NOW + 10)
    waiting = {"user": "mallory", "name": "next", "time_limit_s": 10 * HOUR}

    def factors(now):
        result = cluster.engine.cycle(queue(started, waiting, {"user": "bob"}, now=now), now).predicted
        return result.misprediction[1], result.misprediction[2], result.time_s[1]

    assert factors(NOW + 30)[:2] == (1.0, 1.0)
    early, other, _ = factors(NOW + 1.5 * HOUR)
    late, _, time_s = factors(NOW + 2 * HOUR)
    assert 1.0 < early < late <= 2.0
    assert other == 1.0
    assert time_s == pytest.approx(5 * HOUR * late)


def test_the_prediction_at_the_start_determines_the_factor():
    mispredictions = Mispredictions()
    mispredictions.record_predictions(queue({}, {"array_job_id": 102, "tasks": 5}), np.array([100.0, 200.0]))
    result = queue(
        running(start_s=NOW + 1), running(job_id=103, array_job_id=102, array_task_id=1, start_s=NOW + 2), {}
    )
    mispredictions.record_starts(result, NOW + 50)
    assert [(one.job_id, one.predicted_s) for one in mispredictions.unsaved] == [(101, 100.0), (103, 200.0)]
    assert mispredictions.running_overruns("alice") == (0.0, 0.0)
    mispredictions.record_predictions(result, np.array([1.0, 1.0, 1.0]))
    mispredictions.record_starts(result, NOW + 401)
    assert len(mispredictions.unsaved) == 2
    total, weight = mispredictions.running_overruns("alice")
    assert weight == pytest.approx(400.0 + 399.0)
    assert total == pytest.approx(400 * math.log(4.0) + 399 * math.log(399 / 200))


def test_predictions_from_before_a_restart_count():
    mispredictions = Mispredictions()
    mispredictions.load([(101, NOW - 9000, 5.0), (101, NOW - 4000, 50.0), (102, NOW - 4000, 50.0)])
    mispredictions.record_starts(queue(running(start_s=NOW - 4000), running(start_s=NOW - 10)), NOW)
    assert mispredictions.running_overruns("alice")[1] == pytest.approx(4000.0)
    assert mispredictions.unsaved == []


def test_finished_overruns_count_and_decay():
    cluster = Cluster()
    cluster.ran(DAY, name="x", predicted_s=300.0)
    cluster.ran(1.0, name="y", predicted_s=40.0, times=500)  # early ends do not compensate
    result = cluster.engine.cycle(queue(LONG | {"name": "z"}), NOW).predicted
    assert result.misprediction[0] > 100
    assert result.time_s[0] == DAY
    later = NOW + 5 * 14 * DAY
    result = cluster.engine.cycle(queue(LONG | {"name": "z"}, now=later), later).predicted
    assert 1.0 < result.misprediction[0] < 1.3


def test_the_explanation_shows_bound_and_factor():
    cluster = Cluster()
    cluster.ran(1.0, times=3)
    cluster.ran(2 * HOUR, name="x", predicted_s=HOUR)
    snapshot = cluster.engine.cycle(queue(LONG, {}), NOW)
    explained = explanation.Explainer(snapshot).job(0)
    assert explained["predicted"]["source_time_s"] < HOUR
    assert explained["predicted"]["lower_bound_s"] > 5 * HOUR
    assert explained["predicted"]["misprediction_factor"] == pytest.approx(2.0, rel=0.01)
    assert "raised to the lower bound" in explained["why"] and "misprediction factor" in explained["why"]


# --- arithmetic --------------------------------------------------------------------------------------------

POSITIVE = st.floats(1e-3, 1e6)


@given(POSITIVE, POSITIVE, st.floats(0, 1e9))
def test_bounds_lie_between_prior_and_evidence(prior, value, share):
    result = bounded(prior, value, share)
    assert min(prior, value) * (1 - 1e-9) <= result <= max(prior, value) * (1 + 1e-9)
    if share <= 0.05:
        assert result == prior


@given(POSITIVE, POSITIVE)
def test_rounding_never_lowers_and_adds_less_than_a_tenth(value, anchor):
    result = rounded_up(value, anchor)
    assert value * (1 - 1e-6) <= result <= value * 1.0906
    assert rounded_up(result, anchor) == pytest.approx(result)


@given(st.lists(st.tuples(POSITIVE, POSITIVE, st.floats(0, 1e7)), max_size=20))
def test_factors_are_bounded_and_never_below_one(runs):
    sums = [(overrun(actual, said) * weight, weight) for actual, said, weight in runs]
    factor = misprediction_factor(sum(s for s, _ in sums), sum(w for _, w in sums))
    assert 1.0 <= factor <= 1000.0 * (1 + 1e-9)


RUNS = st.lists(
    st.tuples(st.floats(0.1, DAY), st.sampled_from([600.0, HOUR, DAY]), st.sampled_from("ab")), max_size=15
)


@given(RUNS, st.integers(1, 3), st.floats(0.1, 100.0))
def test_three_short_decoys_shorten_a_prediction_by_at_most_a_step(runs, count, seconds):
    fresh, cheated = Cluster(), Cluster()
    for cluster in (fresh, cheated):
        for duration, limit, name in runs:
            cluster.ran(min(duration, limit), name=name, limit=limit)
    before = fresh.bounds(*request_for())
    cheated.ran(seconds, name="a", times=count)
    after = cheated.bounds(*request_for())
    assert after.time_s[0] >= before.time_s[0] / 1.0906
    assert after.power_watts[0] >= before.power_watts[0] / 1.0906


def request_for():
    columns = {"user": ["mallory"], "name": ["a"], "nodes": [1], "cpus": [64], "gpus": [0],
               "time_limit_s": [DAY]}  # fmt: skip
    return columns, [DAY], [500.0], NOW


# --- power caps in the live queue --------------------------------------------------------------------------


def test_caps_of_flags_and_policies_count_in_the_queue():
    """Power caps from job flags and from policies lower the predicted power of jobs in the queue.

    In the test, twenty runs at 300 W are stored. The same job is then predicted with caps.
    """
    history = History()
    for number in range(20):
        history.learn(
            ObservedRun(
                NOW + number,
                600.0,
                energy_joules=300.0 * 600,
                user="alice",
                name="train",
                nodes=1,
                cpus=1,
                gpus=1,
                time_limit_s=900.0,
                policy="monitor",
            )
        )
    text = '[priority]\npolicy = "zeus"\n[policies.night]\nbase = "cap"\ngpu_cap_watts = 150\n'
    mispredictions = EngineState(DecayedUsage(7 * DAY))

    def bounds(*given):
        return bounds_many(history, *given)

    guard = PredictionGuard(mispredictions.mispredictions, bounds)
    ranker = PriorityEngine(
        configuration.parse(text), mispredictions, lambda columns: predict_many(history, columns), guard=guard
    )
    job = {"name": "train", "gpus": 1, "time_limit_s": 9000.0}
    flags = [{}, {"ENERGY_GPU_CAP": "100"}, {"ENERGY_POLICY": "night"}, {"ENERGY_CAP": "200"}]
    result = ranker.cycle(queue(*(job | {"flags": one} for one in flags)), NOW).predicted
    free, gpu, site, node = result.power_watts
    assert free == pytest.approx(300.0, rel=0.2)
    assert gpu <= 100.0 and site <= 150.0 and node <= 200.0
    assert result.time_s[0] < result.time_s[3] < result.time_s[2] < result.time_s[1]
    explained = explanation.Explainer(ranker.cycle(queue(job | {"flags": flags[1]}), NOW)).job(0)
    assert explained["predicted"]["power_watts"] <= 100.0


@pytest.mark.parametrize("kind", ["v100", "h100"])
def test_decoys_in_one_shape_do_not_shorten_another(kind):
    result = []
    for times in (0, 3):
        cluster = Cluster()
        guard = PredictionGuard(cluster.engine_state.mispredictions, cluster.bounds)
        free = [
            NodeResources(one, frozenset({"cpu"}), True, 64, 64, {one: 4}, {one: 4})
            for one in ("v100", "h100")
        ]
        config = configuration.parse('[priority]\npolicy = "zeus"\n')
        shaper = OfferedShapeProvider(QueuePredictor(config, cluster.forecast, guard), lambda free=free: free)
        ranker = PriorityEngine(config, cluster.engine_state, cluster.forecast, shaper, guard)
        cluster.ran(1.0, gpus=4, gpu_kind=kind, times=times)
        offers = {"ENERGY_ALTERNATIVES": "gpu:v100:4,gpu:h100:4"}
        table = ranker.cycle(queue(LONG | {"gpus": 4, "gpu_kind": "v100", "flags": offers}), NOW).shapes.table
        assert len(table.time_s) == 2
        result.append((table.time_s.min(), table.edp.min()))
    assert result[1][0] >= result[0][0] / 1.0906
    assert result[1][1] >= result[0][1] / 1.3


@given(
    st.lists(st.tuples(st.floats(1, DAY), st.floats(10, 500), st.none() | st.floats(100, 400)), max_size=6),
    st.tuples(st.floats(100, 1000), st.floats(100, 1000)),
    st.sampled_from([600.0, HOUR, DAY]),
)
def test_predictions_in_the_queue_are_monotone_in_the_cap(observed, caps, limit):
    cluster = Cluster()
    for seconds, watts, cap in observed:
        cluster.ran(min(seconds, limit), limit=limit, watts=watts, gpus=1, gpu_cap_watts=cap)
    low, high = sorted(caps)
    job = LONG | {"gpus": 1, "gpu_kind": "a100", "time_limit_s": limit}
    rows = [job | {"flags": {"ENERGY_GPU_CAP": f"{cap:f}"}} for cap in (low, high)]
    result = cluster.engine.cycle(queue(*rows, job), NOW).predicted
    assert result.time_s[0] >= result.time_s[1] * (1 - 1e-9) >= result.time_s[2] * (1 - 2e-9)
    assert result.power_watts[0] <= result.power_watts[1] * (1 + 1e-6)
    if observed:  # otherwise the nameplate, which includes the CPUs beside the GPU
        assert result.power_watts[0] <= low * (1 + 1e-6)


def test_a_pending_job_is_recognised_by_its_script():
    cluster = Cluster()
    cluster.ran(300.0, limit=900.0, name="a", fingerprint="0123456789abcdef", policy="monitor", times=5)
    cluster.ran(800.0, limit=900.0, name="b", times=5)
    script = {"user": "mallory", "name": "b", "time_limit_s": 900.0, "cpus": 64}
    noted = script | {"flags": {"ENERGY_FINGERPRINT": "0123456789abcdef"}}
    forged = script | {"flags": {"ENERGY_FINGERPRINT": "../../x"}}
    result = cluster.engine.cycle(queue(script, noted, forged), NOW).predicted
    assert result.basis(1) == "5 runs: same script, arguments, resources and policy"
    assert result.basis(0) == result.basis(2) == "5 runs: same user, name and resources"
    assert result.time_s[1] < 0.6 * result.time_s[0]
