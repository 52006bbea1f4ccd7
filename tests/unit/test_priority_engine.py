"""Tests of the priority engine without Slurm.

The tests check predictions, usage of users, order of the jobs, site factors, and explanations.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_examples import NOW, queue, running

from slurm_energy import config as configuration
from slurm_energy import scheduling
from slurm_energy.accounting.records.record_selection import Visibility
from slurm_energy.accounting.usage.consumption import ConsumptionRecord
from slurm_energy.errors import ForbiddenError, NotFoundError, UsageError
from slurm_energy.oracle.history import History, HistoryOracle, ObservedRun
from slurm_energy.oracle.history.queue_forecast import QueueForecast, predict_many
from slurm_energy.oracle.nameplate import NO_LIMIT_S, NameplateOracle
from slurm_energy.oracle.prediction import PredictionRequest
from slurm_energy.oracle.training_oracle import TrainingOracle
from slurm_energy.priority import explanation
from slurm_energy.priority.engine import EngineState, PriorityEngine
from slurm_energy.priority.prediction import HISTORY, MODEL, NAMEPLATE, QueuePredictor
from slurm_energy.priority.query import PriorityQuery, matching_rows, visible_rows
from slurm_energy.priority.rank_correlation import count_inversions, rank_correlation
from slurm_energy.priority.running_usage import RECORD_TIMEOUT_S
from slurm_energy.priority.scheduling_tables import waiting_since
from slurm_energy.priority.site_factors import MIN_SITE_FACTOR, SPACING
from slurm_energy.priority.snapshot_tables import ranking_input, share_rows
from slurm_energy.priority.usage import DecayedUsage, decay_weight
from slurm_energy.scheduling import Jobs, Options, Policy, Queue, Ranking, Users
from slurm_energy.scheduling.queue import Alternatives
from slurm_energy.scheduling.ranking import Term
from slurm_energy.slurm.fair_share import Association, normalise_shares

HOUR, DAY = 3600.0, 86400.0
POLICIES = ("zeus", "hades", "themis", "chronos", "aurachronos", "blend", "pollux", "multifactor")


def settings(policy="zeus", **more):
    lines = [f'policy = "{policy}"'] + [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    return configuration.parse("[priority]\n" + "\n".join(lines))


def engine(policy="zeus", engine_state=None, history=None, **more):
    remembered = None if history is None else lambda columns: predict_many(history, columns)
    return PriorityEngine(
        settings(policy, **more), engine_state or EngineState(DecayedUsage(7 * DAY)), remembered
    )


def order(snapshot):
    """Return job ids in the order in which Slurm would start the jobs of a snapshot.

    Slurm orders the jobs by falling site factor.
    """
    ids, numbers = snapshot.site_factor_table()
    ranked = numbers > 0
    return ids[ranked][np.argsort(-numbers[ranked], kind="stable")].tolist()


def limits(*hours, **more):
    return [{"time_limit_s": hour * HOUR} | more for hour in hours]


# --- predictions -----------------------------------------------------------------------------------------


def test_history_then_model_then_general_history_then_nameplate():
    history = History()
    for n in range(5):
        history.learn(
            ObservedRun(
                end=NOW + n,
                duration_s=100.0,
                energy_joules=50_000.0,
                user="alice",
                name="fit",
                nodes=1,
                cpus=1,
                gpus=0,
            )
        )
        history.learn(
            ObservedRun(
                end=NOW + n,
                duration_s=50.0,
                energy_joules=5000.0,
                user="bob",
                name="x",
                gpus=1,
                nodes=1,
                cpus=1,
                time_limit_s=HOUR,
            )
        )
    trains = {"gpus": 1, "gpu_kind": "a100", "flags": {"ENERGY_MODEL": "resnet50"}, "time_limit_s": 7 * DAY}
    asked = queue(
        {"name": "fit"},
        trains | {"user": "carol", "account": "art"},
        trains | {"user": "bob", "name": "new"},
        {"user": "dora", "account": "art", "partition": "other"},
        {"user": "bob", "name": "new", "gpus": 1, "account": "art", "partition": "other"},
        trains | {"user": "bob", "name": "x"},
    )
    found = QueuePredictor(settings(), lambda columns: predict_many(history, columns)).predict(asked)
    assert found.source.tolist() == [HISTORY, MODEL, MODEL, NAMEPLATE, HISTORY, HISTORY]
    assert found.power_watts[0] == pytest.approx(500.0, rel=0.01)
    assert found.runs.tolist() == [5, 0, 0, 0, 5, 5]
    model = TrainingOracle().predict(PredictionRequest(model="resnet50", gpu_kind="a100", gpus=1))
    assert found.time_s[1] == model.duration_s.mean and found.power_watts[1] == model.power_watts.mean
    assert "same user, name and resources" in found.basis(0) and found.basis(1) == "training model"


@given(
    st.lists(
        st.tuples(
            *(st.integers(0, 8), st.integers(1, 4), st.integers(0, 64)),
            st.sampled_from(["", "a100", "h100", "strange"]),
            st.sampled_from([math.nan, 60.0, 7200.0]),
            st.sampled_from([{}, {"ENERGY_CAP": "300"}, {"ENERGY_GPU_CAP": "200"}, {"ENERGY_POLICY": "?"}]),
        ),
        max_size=6,
    )
)
def test_columns_agree_with_the_nameplate(shapes):
    names = ("gpus", "nodes", "cpus", "gpu_kind", "time_limit_s", "flags")
    asked = queue(*(dict(zip(names, shape, strict=True)) for shape in shapes))
    found = QueuePredictor(settings()).predict(asked)
    for row, (gpus, nodes, cpus, kind, limit, flags) in enumerate(shapes):
        caps = {"cap_watts": 300.0} if "ENERGY_CAP" in flags else {}
        caps |= {"gpu_cap_watts": 200.0} if "ENERGY_GPU_CAP" in flags else {}
        limit = None if math.isnan(limit) else limit
        question = PredictionRequest(
            nodes=nodes, cpus=cpus, gpus=gpus, gpu_kind=kind or None, time_limit_s=limit, **caps
        )
        answer = NameplateOracle().predict(question)
        assert found.time_s[row] == pytest.approx(answer.duration_s.mean)
        assert found.power_watts[row] == pytest.approx(answer.power_watts.mean)


def test_columns_agree_with_the_history():
    history = History()
    for n in range(9):
        history.learn(
            ObservedRun(
                end=NOW + n,
                duration_s=100.0 + n,
                energy_joules=5e4 * n if n else None,
                user="alice",
                name=f"j{n % 3}",
                time_limit_s=HOUR,
            )
        )
    asked = queue(*({"name": f"j{n}"} for n in range(4)))
    found = QueuePredictor(settings(), lambda columns: predict_many(history, columns)).predict(asked)
    oracle = HistoryOracle(history, NameplateOracle())
    for row in range(4):
        question = PredictionRequest(
            user="alice", account="physics", partition="cpu", name=f"j{row}", nodes=1, cpus=1, gpus=0,
            time_limit_s=3600.0, policy="monitor",
        )  # fmt: skip
        answer = oracle.predict(question)
        assert found.time_s[row] == pytest.approx(answer.duration_s.mean)
        assert found.power_watts[row] == pytest.approx(answer.power_watts.mean)


FIGURES = st.floats() | st.sampled_from([math.nan, math.inf, -1.0, 1e308, 5e-324, 100.0])


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=5))
def test_impossible_figures_do_not_stop_the_ranking(figures):
    times, watts = (np.array(column) for column in zip(*figures, strict=True))
    count = np.full(len(figures), 3)
    none = np.full(len(figures), np.nan)
    said = QueueForecast(times, none, none, watts, none, none, none, none, none, runs=count, level=count)
    found = PriorityEngine(settings(), EngineState(DecayedUsage(DAY)), lambda columns: said).cycle(
        queue(*limits(*range(1, 1 + len(figures)))), NOW
    )
    assert len(order(found)) == len(figures)
    assert np.all(np.isfinite(found.predicted.edp)) and np.all(found.predicted.time_s > 0)


def test_no_prediction_exceeds_the_time_limit():
    trains = {"gpus": 1, "gpu_kind": "a100", "flags": {"ENERGY_MODEL": "resnet50"}, "time_limit_s": 60.0}
    assert QueuePredictor(settings()).predict(queue(trains)).time_s[0] == 60.0


def test_jobs_without_a_limit_and_with_unchecked_flags():
    found = QueuePredictor(settings()).predict(
        queue(
            {
                "time_limit_s": math.nan,
                "flags": {"ENERGY_CAP": "\x00", "ENERGY_MODEL": "../../etc"},
                "gpus": 2,
            }
        )
    )
    assert found.time_s[0] == NO_LIMIT_S / 2 and found.source[0] == NAMEPLATE


# --- usage -----------------------------------------------------------------------------------------------


def used(row=1, joules=1000.0, start=NOW - HOUR, end=NOW, user="alice", account="physics", **more):
    more = {"gpus": 2, "job_id": 9000 + row, "restart_count": 0, "settled": True} | more
    return ConsumptionRecord(row, user, account, start, end, joules, **more)


def test_a_record_without_an_account_counts_for_its_users_only_account():
    usage = DecayedUsage(HOUR)
    usage.association_rows([("physics", "alice"), ("physics", "bob"), ("biology", "bob")])
    new = {"account": "", "settled": False, "start": NOW - 1}
    usage.add_records(
        [used(1, user="alice", **new), used(2, user="bob", **new), used(3, user="carol", **new)], NOW
    )
    used_joules = usage.decayed(NOW)[0].tolist()
    joules = dict(zip(usage.associations(), used_joules, strict=True))
    assert joules[("physics", "alice")] == pytest.approx(1000, rel=1e-3)
    assert joules[("physics", "bob")] == joules[("biology", "bob")] == 0
    assert joules[("", "bob")] == joules[("", "carol")] == pytest.approx(1000, rel=1e-3)


def test_usage_decays_on_after_the_clock_was_ahead():
    usage = DecayedUsage(HOUR)
    usage.add_records([used(start=NOW - 1, joules=1000.0)], NOW)
    usage.decayed(NOW + HOUR)
    before = usage.decayed(NOW)[0][0]
    assert usage.decayed(NOW + HOUR)[0][0] == pytest.approx(before / 2)


def test_usage_halves_in_its_half_life():
    usage = DecayedUsage(DAY)
    usage.add_records([used(start=NOW - 1, joules=1000.0)], NOW)
    usage.association_rows([("physics", "alice")])
    before, _ = usage.decayed(NOW)
    after, gpu_seconds = usage.decayed(NOW + DAY)
    assert before[0] == pytest.approx(1000.0, rel=1e-4) and after[0] == pytest.approx(500.0, rel=1e-4)
    assert gpu_seconds[0] == pytest.approx(1.0, rel=1e-4)


@given(
    st.lists(st.tuples(st.floats(HOUR, 10 * DAY), st.floats(1, DAY)), min_size=1, max_size=8),
    st.integers(0, 8),
)
def test_usage_does_not_depend_on_intermediate_reads(runs, split):
    records = [used(n, 1e6, NOW - ago - long, NOW - ago, f"u{n % 2}") for n, (ago, long) in enumerate(runs)]
    whole, parts = DecayedUsage(DAY), DecayedUsage(DAY)
    whole.add_records(records, NOW)
    parts.add_records(records[:split], NOW - HOUR)
    parts.decayed(NOW - HOUR / 2)
    parts.add_records(records[split:], NOW)
    assert whole.decayed(NOW)[0] == pytest.approx(parts.decayed(NOW)[0], rel=1e-3)


@given(st.floats(0, 40 * DAY), st.floats(0, 10 * DAY), st.floats(HOUR, 30 * DAY))
def test_weights_are_the_mean_over_the_time_used(ago, long, half_life):
    start, end = np.array([NOW - ago - long]), np.array([NOW - ago])
    times = start + (np.arange(2000) + 0.5) / 2000 * (end - start)
    exact = np.mean(2.0 ** (-(NOW - times) / half_life))
    assert decay_weight(start, end, NOW, half_life)[0] == pytest.approx(exact, rel=1e-3, abs=1e-9)


def test_records_count_for_an_account_that_slurm_reports_later():
    usage = DecayedUsage(DAY)
    usage.add_records([used(7, account="", settled=False)], NOW)
    assert usage.last_row == 7 and usage.rows_to_read_again() == [7]
    early = usage.decayed(NOW)[0]
    usage.add_records([used(7, account="physics")], NOW)
    late = usage.decayed(NOW)[0]
    assert usage.associations() == [("", "alice"), ("physics", "alice")]
    assert early[0] > 0 and late[0] == 0 and late[1] == pytest.approx(early[0])
    assert usage.rows_to_read_again() == []


def test_finished_runs_leave_the_queue_before_slurmctld_reports_it():
    engine_state = EngineState(DecayedUsage(DAY))
    engine_state.usage.add_records(
        [used(n, 1000.0, NOW - 20, NOW - 1, job_id=100 + n) for n in range(1, 6)]
        + [used(6, 1000.0, NOW - 2 * HOUR, NOW - HOUR, job_id=106)],
        NOW,
    )
    rows = [
        {"submit_s": NOW - 30.0},
        running(submit_s=NOW - 30.0, start_s=NOW - 20.0),
        {"submit_s": NOW - 30.0, "restart_count": 1},  # the first run has ended
        {"submit_s": NOW + 300.0},  # another job with that id, with different clocks
        running(submit_s=NOW - 30.0, start_s=NOW - 5.0, restart_count=1),
        {"submit_s": NOW - 3 * HOUR},  # too long ago to be within the plugin's minute
    ]
    found = engine(engine_state=engine_state).cycle(queue(*rows), NOW)
    assert found.queue.job_id.tolist() == [103, 104, 105, 106]
    assert found.users.energy_joules[0] < 6 * 1000.0 + 10 * found.predicted.power_watts[2]
    assert engine(engine_state=engine_state).cycle(queue(*rows), NOW + HOUR).queue.count == 6


def test_running_jobs_count_by_their_predicted_watts():
    found = engine().cycle(
        queue(running(start_s=NOW - HOUR, user="bob", account="art", gpus=4, gpu_kind="a100"), {}), NOW
    )
    row = found.associations.index(("art", "bob"))
    expected = found.predicted.power_watts[0] * HOUR
    assert found.users.energy_joules[row] == pytest.approx(expected, rel=0.01)
    assert found.users.gpu_seconds[row] == pytest.approx(4 * HOUR, rel=0.01)


def test_an_ended_run_counts_until_its_energy_record_arrives():
    engine_state = EngineState(DecayedUsage(7 * DAY))
    ranked = engine("hades", engine_state)
    ranked.cycle(queue(running(user="bob", start_s=NOW - HOUR), {"user": "carol"}), NOW)
    rows = [{"job_id": 102, "user": "carol"}, {"job_id": 103, "user": "bob"}]

    def usage_of_bob(now_s):
        found = ranked.cycle(queue(*rows, now=now_s), now_s)
        return found.users.energy_joules[found.associations.index(("physics", "bob"))]

    ended = usage_of_bob(NOW + 2.0)
    assert ended > 0
    assert usage_of_bob(NOW + 20.0) == pytest.approx(ended, rel=1e-3)  # the estimate ends with the run
    engine_state.usage.add_records([used(1, 5000.0, NOW - HOUR, NOW + 1, user="bob", job_id=101)], NOW + 21.0)
    assert usage_of_bob(NOW + 21.0) == pytest.approx(5000.0, rel=0.01)  # less an hour of decay


def test_the_estimate_of_a_run_that_no_record_describes_expires():
    engine_state = EngineState(DecayedUsage(7 * DAY))
    ranked = engine("hades", engine_state)
    ranked.cycle(queue(running(user="bob", start_s=NOW - HOUR)), NOW)
    for elapsed_s, counts in ((2.0, True), (RECORD_TIMEOUT_S, True), (RECORD_TIMEOUT_S + 3.0, False)):
        found = ranked.cycle(queue({"job_id": 102}, now=NOW + elapsed_s), NOW + elapsed_s)
        joules = found.users.energy_joules[found.associations.index(("physics", "bob"))]
        assert bool(joules > 0) == counts


@pytest.mark.parametrize("restart_count", [0, 1])
def test_the_record_of_an_earlier_run_does_not_replace_the_estimate_of_a_requeued_job(restart_count):
    engine_state = EngineState(DecayedUsage(7 * DAY))
    ranked = engine("hades", engine_state)
    rerun = running(user="bob", submit_s=NOW - DAY, start_s=NOW - HOUR, restart_count=1)
    ranked.cycle(queue(rerun), NOW)
    record = used(1, 1.0, NOW - 2 * HOUR, NOW - 10, user="bob", job_id=101, restart_count=restart_count)
    engine_state.usage.add_records([record], NOW)
    found = ranked.cycle(queue({"job_id": 102}, now=NOW + 2.0), NOW + 2.0)
    joules = found.users.energy_joules[found.associations.index(("physics", "bob"))]
    assert bool(joules > 1000.0) == (restart_count == 0)


# --- order -----------------------------------------------------------------------------------------------


def test_least_edp_first():
    found = engine().cycle(queue(*limits(3, 1, 2)), NOW)
    assert order(found) == [102, 103, 101]
    assert found.place.tolist() == [3, 1, 2]
    assert found.default_site_factor == found.site_factors[2]


def test_jobs_of_the_heaviest_user_go_last():
    engine_state = EngineState(DecayedUsage(7 * DAY))
    engine_state.usage.add_records([used(user="bob", joules=1e9)], NOW)
    found = engine("hades", engine_state).cycle(queue({"user": "bob"}, {"user": "carol"}), NOW)
    assert order(found) == [102, 101]


def test_shares_weigh_usage():
    engine_state = EngineState(DecayedUsage(7 * DAY))
    engine_state.usage.add_records([used(1, 1e9, user="bob"), used(2, 2e8, user="carol")], NOW)
    rows = [{"user": "bob", "shares_norm": 0.9}, {"user": "carol", "shares_norm": 0.1}]
    assert order(engine("hades", engine_state).cycle(queue(*rows), NOW)) == [101, 102]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_returned_state_reproduces_the_order(policy):
    rows = [
        {
            "time_limit_s": HOUR * (1 + n % 7),
            "cpus": 1 + n % 3,
            "user": f"u{n % 4}",
            "submit_s": NOW - 900.0 * n,
        }
        | ({"deadline_s": NOW + 9 * HOUR + n} if n % 5 == 0 else {})
        for n in range(60)
    ]
    engine_state = EngineState(DecayedUsage(7 * DAY))
    engine_state.usage.add_records([used(n, 1e7 * n, user=f"u{n}") for n in range(4)], NOW)
    found = engine(policy, engine_state).cycle(queue(*rows), NOW)
    columns = json.loads(json.dumps(ranking_input(found), allow_nan=False))

    def table(kind, name):
        types = {"possible": np.bool_} | dict.fromkeys(
            ("job_id", "user", "first", "gpus", "batch", "hardware"), np.int64
        )
        return kind(
            **{
                key: np.array([math.nan if v is None else v for v in values], types.get(key, np.float64))
                for key, values in columns[name].items()
            }
        )

    again = Queue(
        columns["now_s"], table(Jobs, "jobs"), table(Alternatives, "alternatives"), table(Users, "users")
    )
    ranking = scheduling.policy(columns["policy"]).rank(again, Options(**columns["options"]))
    ids = again.jobs.job_id
    assert ids[ranking.order(ids)].tolist() == columns["order"] == order(found)


def test_jobs_that_are_not_ranked_keep_slurms_order():
    rows = [{}, {"fixed": True}, {"partition": "gpu"}, {"partition": "gpu,cpu"}, running()]
    found = engine(partitions=["cpu"]).cycle(queue(*rows), NOW)
    assert found.place.tolist() == [1, 0, 0, 2, 0]
    ids, numbers = found.site_factor_table()
    assert ids.tolist() == [101, 102, 103, 104]
    assert (numbers > 0).tolist() == [True, False, False, True]


def test_held_and_dependent_jobs_have_a_place_and_no_age():
    rows = [
        {"submit_s": NOW - DAY * 9, "held": True, "time_limit_s": 2 * HOUR},
        {"submit_s": NOW - DAY * 9, "dependent": True, "time_limit_s": 3 * HOUR},
        {"submit_s": NOW - DAY * 9, "held": True, "eligible_s": NOW - DAY * 8},
        {"submit_s": NOW - 60.0},
        {"submit_s": NOW - DAY * 9, "eligible_s": NOW + HOUR, "time_limit_s": 9 * HOUR},
    ]
    found = engine().cycle(queue(*rows), NOW)
    assert (NOW - waiting_since(found.queue, NOW)).tolist() == [0.0, 0.0, 8 * DAY, 60.0, 0.0]
    assert order(found) == [103, 104, 101, 102, 105]
    assert found.startable().tolist() == [False, False, False, True, False]


def test_components_share_the_place_of_their_leader():
    rows = limits(1, 3, 2, 1)
    rows[1] |= {"het_job_id": 102, "time_limit_s": HOUR}
    rows[2] |= {"het_job_id": 102, "time_limit_s": 9 * HOUR}
    found = engine().cycle(queue(*rows), NOW)
    assert found.place.tolist() == [1, 3, 3, 2]
    assert found.site_factors[1] == found.site_factors[2]
    alone = engine().cycle(queue({"time_limit_s": 9 * HOUR}, {"time_limit_s": HOUR}), NOW).predicted
    assert found.predicted.time_s[1] == alone.time_s[0]
    assert found.predicted.power_watts[1] == alone.power_watts.sum()


def test_an_array_has_one_place_and_is_set_as_one():
    rows = limits(2, 1, 3, 4)
    rows[0] |= {"job_id": 100, "array_job_id": 100, "tasks": 5, "held": True}
    rows[3] |= {"array_job_id": 100, "array_task_id": 7}
    rows.append(running(array_job_id=100, array_task_id=1))
    found = engine(mode="portable").cycle(queue(*rows), NOW)
    assert found.leader.tolist() == [3, 1, 2, 3, 4]
    assert found.place.tolist() == [3, 1, 2, 3, 0]
    assert list(found.site_factor_changes()) == [102, 103, 100]
    assert explanation.Explainer(found).job(0)["predicted"]["time_s"] == HOUR
    assert "Held; once released" in explanation.Explainer(found).why(0)


def test_site_factors_stay_where_the_order_does():
    engine_state = EngineState(DecayedUsage(7 * DAY))
    first = engine(engine_state=engine_state).cycle(queue(*limits(1, 2, 4, 5)), NOW)
    rows = [*limits(1, 2, 4, 5), {"job_id": 200, "time_limit_s": 3 * HOUR}]
    second = engine(engine_state=engine_state).cycle(queue(*rows, now=NOW + 15), NOW + 15)
    assert second.site_factors[:4].tolist() == first.site_factors.tolist()
    assert first.site_factors[1] > second.site_factors[4] > first.site_factors[2]


def test_portable_mode_uses_the_site_factors_in_slurm():
    rows, ranker = limits(1, 2, 3), engine(mode="portable")
    for row, number in zip(
        rows, (MIN_SITE_FACTOR + 30 * SPACING, 0, MIN_SITE_FACTOR + 20 * SPACING), strict=True
    ):
        row["site_factor"] = number
    found = ranker.cycle(queue(*rows), NOW)
    assert list(found.site_factor_changes()) == [102]
    for row, number in zip(rows, found.site_factors.tolist(), strict=True):
        row["site_factor"] = number + 5  # set by another program, and the order is right
    assert ranker.cycle(queue(*rows), NOW).site_factor_changes() == {}


@pytest.mark.parametrize(("mode", "changed"), [("portable", {101: 0, 90: 0}), ("plugin", {})])
def test_a_job_loses_its_place_in_a_partition_that_is_not_ranked(mode, changed):
    engine_state = EngineState(
        DecayedUsage(7 * DAY), applied_factors={101: 10**9, 90: 10**8, 104: 7, 105: 10**9}
    )
    rows = [
        {"partition": "other", "site_factor": 10**9},
        {"partition": "other", "site_factor": 10**8, "array_job_id": 90},
        {"partition": "other", "site_factor": 5},  # set by another program
        {"partition": "other", "fixed": True, "site_factor": 7},
        running(partition="other", site_factor=10**9),
    ]
    assert (
        engine(engine_state=engine_state, partitions=["cpu"], mode=mode)
        .cycle(queue(*rows), NOW)
        .site_factor_changes()
        == changed
    )


def test_a_job_that_leaves_the_head_is_changed_before_those_behind():
    """A job that must move back in the queue gets its new site factor before the jobs behind it.

    The site factor is the part of the job priority that senergyctld sets. If the changes were made in
    another order and were not finished in time, a job that should start late could start first.
    """
    rows = limits(1, 2, 3, 8, 9)
    numbers = (30 * SPACING, 29 * SPACING, 28 * SPACING, 0, 50 * SPACING)
    for row, number in zip(rows, numbers, strict=True):
        row["site_factor"] = number and MIN_SITE_FACTOR + number
    found = engine(mode="portable").cycle(queue(*rows), NOW)
    assert order(found) == [101, 102, 103, 104, 105]
    assert list(found.site_factor_changes()) == [105, 104]


@pytest.mark.parametrize(("mode", "stays"), [("portable", True), ("plugin", False)])
def test_jobs_deep_in_a_long_queue_keep_their_order_in_portable_mode(mode, stays):
    hours = [*range(1, 201)]
    ranker = engine(mode=mode)
    rows = limits(*hours)
    for row, number in zip(rows, ranker.cycle(queue(*rows), NOW).site_factors.tolist(), strict=True):
        row["site_factor"] = number
    rows[150]["time_limit_s"], rows[151]["time_limit_s"] = 152 * HOUR, 151 * HOUR
    found = ranker.cycle(queue(*rows), NOW)
    assert (found.site_factors[150] > found.site_factors[151]) == stays
    rows[50]["time_limit_s"], rows[51]["time_limit_s"] = 52 * HOUR, 51 * HOUR
    found = ranker.cycle(queue(*rows), NOW)
    assert found.site_factors[50] < found.site_factors[51]


TIMES = st.sampled_from([math.nan, 0.0, NOW - 9 * DAY, NOW - 60.0, NOW, NOW + HOUR, 1e12])
ROWS = st.fixed_dictionaries(
    {
        "state": st.integers(0, 1),
        "held": st.booleans(),
        "dependent": st.booleans(),
        "fixed": st.booleans(),
        "array_job_id": st.sampled_from([0, 0, 50, 60]),
        "array_task_id": st.integers(-1, 3),
        "het_job_id": st.sampled_from([0, 0, 101, 102]),
        "partition": st.sampled_from(["cpu", "gpu", "gpu,cpu", ""]),
        "user": st.sampled_from(["", "alice", "bob"]),
        "account": st.sampled_from(["", "physics"]),
        "submit_s": TIMES,
        "eligible_s": TIMES,
        "start_s": TIMES,
        "deadline_s": TIMES,
        "time_limit_s": st.sampled_from([math.nan, 0.0, 60.0, 3e9]),
        "shares_norm": st.sampled_from([math.nan, 0.0, 0.3, 1.0]),
        "gpus": st.sampled_from([0, 1, 10**6]),
        "cpus": st.sampled_from([0, 1, 10**6]),
        "nodes": st.sampled_from([0, 1, 10**5]),
        "gpu_kind": st.sampled_from(["", "a100", "x:y"]),
        "site_factor": st.sampled_from([0, 5, MIN_SITE_FACTOR, MIN_SITE_FACTOR + 1, 2_000_000_000, -7]),
        "flags": st.sampled_from([{}, {"ENERGY_MODEL": "resnet50"}, {"ENERGY_GPU_CAP": "1e9"}]),
    }
)


@given(st.sampled_from(scheduling.names()), st.lists(st.lists(ROWS, max_size=6), min_size=1, max_size=3))
def test_any_queue_is_ranked(policy, queues):
    engine_state = EngineState(DecayedUsage(7 * DAY))
    for mode in ("plugin", "portable"):
        ranker = engine(policy, engine_state, mode=mode, partitions=["cpu", ""])
        for rows in queues:
            found = ranker.cycle(queue(*rows), NOW)
            own = found.place[found.rows]
            assert sorted(own.tolist()) == list(range(1, len(own) + 1))
            if mode == "plugin":  # portable mode leaves jobs far behind unchanged
                assert np.all(np.diff(found.site_factors[found.rows][found.order]) < 0)
            assert not np.any(found.site_factors[found.queue.fixed | (found.queue.state != 0)])
            explainer = explanation.Explainer(found)
            jobs_shown = [explainer.job(row) for row in explanation.pending_rows(found)]
            json.dumps([jobs_shown, share_rows(found, engine_state), ranking_input(found)], allow_nan=False)
            (
                found.site_factor_changes(),
                found.site_factor_table(),
                found.correlation_with_slurm(),
                found.default_site_factor,
            )


def test_an_empty_queue():
    found = engine().cycle(queue(), NOW)
    assert (found.pending, found.default_site_factor, found.site_factor_changes()) == (0, 0, {})
    assert math.isnan(found.correlation_with_slurm().kendall_tau)


WRONG = {
    "tier": lambda n: Ranking(np.full(n, 7), np.zeros(n), np.arange(n)),
    "choice": lambda n: Ranking(np.full(n, 2), np.zeros(n), np.full(n, 99)),
    "another": lambda n: Ranking(np.full(n, 2), np.zeros(n), np.zeros(n, np.int64)),
    "score": lambda n: Ranking(np.full(n, 2), np.zeros(n - 1), np.arange(n)),
    "nan": lambda n: Ranking(np.full(n, 2), np.where(np.arange(n) == 1, np.nan, 0.0), np.arange(n)),
    "term": lambda n: Ranking(np.full(n, 2), np.zeros(n), np.arange(n), {"x": Term(np.zeros(1))}),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_impossible_result_of_a_site_policy_is_refused(what, monkeypatch):
    made = engine()
    monkeypatch.setattr(
        made, "policy", Policy("ours", lambda queue, _: WRONG[what](queue.jobs.count), "wrong")
    )
    with pytest.raises(UsageError, match="policy 'ours'"):
        made.cycle(queue({}, {}, {}), NOW)


def test_missing_policies_are_refused():
    with pytest.raises(NotFoundError, match="zeuss"):
        engine("zeuss")


# --- comparison with Slurm -------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), max_size=40))
def test_count_inversions(values):
    slow = sum(values[i] > values[j] for j in range(len(values)) for i in range(j))
    assert count_inversions(np.array(values, np.int64)) == slow


def test_rank_correlation():
    assert rank_correlation(np.arange(5)).kendall_tau == 1.0
    assert rank_correlation(np.arange(5)[::-1].copy()).kendall_tau == -1.0
    assert rank_correlation(np.array([1, 2, 3, 4, 0])).moved_jobs == 1


def test_the_comparison_covers_the_jobs_that_could_start():
    rows = limits(1, 2, 3, 4)
    for row, priority in zip(rows, (10, 20, 30, 99), strict=True):
        row["priority"] = priority
    rows[3]["held"] = True
    found = engine().cycle(queue(*rows), NOW).correlation_with_slurm()
    assert (found.jobs, found.kendall_tau, found.moved_jobs) == (3, -1.0, 2)


# --- explanations ----------------------------------------------------------------------------------------


def test_a_job_explained():
    rows = limits(3, 1, 2)
    rows[0] |= {"array_job_id": 101, "tasks": 4}
    rows[1] |= {"deadline_s": NOW + 5 * HOUR, "reason": "Priority"}
    found = engine("blend").cycle(queue(*rows), NOW)
    job = explanation.Explainer(found).job(2)
    json.dumps(job, allow_nan=False)
    assert (job["place"], job["ranked_jobs"], job["tier"], job["deadline"]) == (2, 3, "normal", None)
    assert [term["name"] for term in job["terms"]] == ["edp", "fair", "deadline", "age"]
    assert job["score"] == pytest.approx(-sum(term["contribution"] for term in job["terms"]))
    assert "job 102 goes before it for energy-delay product (" in job["why"]
    assert "and it goes before job 101 for energy-delay product (" in job["why"]
    assert job["predicted"]["edp_js"] == pytest.approx(
        job["predicted"]["energy_joules"] * job["predicted"]["time_s"]
    )
    assert [shape["chosen"] for shape in job["shapes"]] == [True]
    assert explanation.Explainer(found).job(0)["display_id"] == "101_[*]"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"held": True}, "Held; once released"),
        ({"dependent": True}, "Waits for other jobs"),
        ({"fixed": True}, "priority of its own"),
        ({"partition": "other"}, "priority.partitions"),
        ({"submit_s": NOW - 2 * DAY}, "waited for longer than 1-00:00:00"),
        ({"deadline_s": NOW + HOUR}, "its deadline is in 01:00:00"),
        ({"deadline_s": NOW - HOUR}, "its deadline is over, and"),
        ({"name": "\x1b[31m\n"}, "Place 1 of"),
    ],
)
def test_why(row, words):
    found = engine("aurachronos", partitions=["cpu"]).cycle(queue(row), NOW)
    why = explanation.Explainer(found).why(0)
    assert words in why and why.endswith(".") and why.isprintable()


def test_share_rows():
    engine_state = EngineState(DecayedUsage(7 * DAY))
    engine_state.usage.add_records([used(1, 3e6, user="bob", account="art"), used(2, 1e6)], NOW)
    found = engine(engine_state=engine_state).cycle(
        queue({"shares_norm": 0.25}, {"user": "bob", "account": "art", "shares_norm": 0.75}), NOW
    )
    rows = share_rows(found, engine_state)
    assert [(row["account"], row["user"]) for row in rows] == [
        ("art", None), ("art", "bob"), ("physics", None), ("physics", "alice"),
    ]  # fmt: skip
    assert rows[0]["energy_share"] == pytest.approx(0.75) and rows[0]["norm_shares"] == 0.75
    assert rows[3]["fair_share_factor"] == pytest.approx(0.5)


def test_an_account_includes_the_accounts_below_it():
    engine_state = EngineState(DecayedUsage(7 * DAY))
    tree = [
        Association("root"),
        Association("science", parent="root"),
        Association("art", parent="root"),
        Association("physics", parent="science"),
        Association("physics", "alice"),
        Association("art", "bob"),
    ]
    engine_state.configured_shares = normalise_shares(tree)
    engine_state.usage.add_records([used(1, 3e6), used(2, 1e6, user="bob", account="art")], NOW)
    rows = share_rows(engine(engine_state=engine_state).cycle(queue({}), NOW), engine_state)
    parts = {row["account"]: (row["energy_share"], row["norm_shares"]) for row in rows if not row["user"]}
    assert parts == {"root": (1.0, 1.0), "science": (0.75, 0.5), "physics": (0.75, 0.5), "art": (0.25, 0.5)}


def test_records_without_an_account_do_not_dilute_the_shares():
    engine_state = EngineState(DecayedUsage(7 * DAY))
    early = used(1, 3e6, user="bob", account="")
    engine_state.usage.add_records(
        [early._replace(settled=False), used(2, 1.0, user="carol", account="", settled=False)], NOW
    )
    with_shares = queue({"shares_norm": 0.25}, {"user": "bob", "account": "art", "shares_norm": 0.75})
    rows = share_rows(engine(engine_state=engine_state).cycle(with_shares, NOW), engine_state)
    assert [row["norm_shares"] for row in rows if row["account"] == ""] == [0.0, 0.0]
    engine_state = EngineState(DecayedUsage(7 * DAY))
    engine_state.usage.add_records([early._replace(settled=False)], NOW)
    engine_state.usage.add_records([early._replace(account="art", settled=True)], NOW)
    rows = share_rows(engine(engine_state=engine_state).cycle(with_shares, NOW), engine_state)
    assert {row["account"] for row in rows} == {"art", "physics"}
    factors = {row["user"]: row["fair_share_factor"] for row in rows if row["user"]}
    assert factors == pytest.approx({"alice": 1.0, "bob": 2 ** (-1 / 0.75)}, rel=1e-5)


# --- visibility ------------------------------------------------------------------------------------------


@pytest.fixture
def busy():
    rows = limits(1, 2, 3, 4, 5)
    rows[1] |= {"user": "bob", "uid": 7, "account": "art"}
    rows[3] |= {"array_job_id": 90, "array_task_id": 3}
    rows[4] |= {"het_job_id": 105}
    return engine().cycle(queue(*rows, running()), NOW)


def ids(snapshot, query, uid=None, name=None, accounts=()):
    wanted = PriorityQuery.from_parameters(query)
    wanted = wanted if uid is None else wanted.limited_to(Visibility(uid, frozenset(accounts)), name)
    return [int(snapshot.queue.job_id[row]) for row in matching_rows(snapshot, wanted)]


def test_queries_select_jobs(busy):
    assert ids(busy, {}) == [101, 102, 103, 104, 105]
    assert ids(busy, {"user": "bob"}) == ids(busy, {"user": "7"}) == ids(busy, {"account": "art"}) == [102]
    assert ids(busy, {"job": "90_3"}) == ids(busy, {"job": "90"}) == ids(busy, {"job": "104"}) == [104]
    assert ids(busy, {"job": "105+0,103"}) == [103, 105]
    assert ids(busy, {"job": "103", "neighbours": "1"}) == [102, 103, 104]
    assert ids(busy, {"job": "106"}) == ids(busy, {"job": "7"}) == ids(busy, {"partition": "x"}) == []


def test_a_task_without_a_record_of_its_own():
    rows = [
        {"job_id": 90, "array_job_id": 90, "tasks": 5},
        {"job_id": 91, "array_job_id": 90, "array_task_id": 3},
        running(job_id=92, array_job_id=90, array_task_id=1),
        {"job_id": 93, "array_job_id": 80, "tasks": 5},
    ]
    snapshot = engine().cycle(queue(*rows), NOW)
    assert [ids(snapshot, {"job": f"90_{task}"}) for task in (3, 4, 1)] == [[91], [90], []]


def test_users_see_own_jobs_only(busy):
    assert ids(busy, {}, 64002, "alice") == [101, 103, 104, 105]
    assert ids(busy, {"user": "alice"}, 64002, "alice") == [101, 103, 104, 105]
    assert ids(busy, {"job": "103", "neighbours": "1"}, 64002, "alice") == [103, 104]
    for query in ({"user": "bob"}, {"job": "102"}, {"state": "1"}):
        with pytest.raises(ForbiddenError):
            ids(busy, query, 64002, "alice")
    may_see = visible_rows(busy.queue, Visibility(64002))
    assert "job 102" not in explanation.Explainer(busy, may_see).why(0)


def test_coordinators_see_the_jobs_of_their_accounts(busy):
    assert ids(busy, {}, 64003, "carol", ["art"]) == [102]
    assert ids(busy, {"user": "bob"}, 64003, "carol", ["art"]) == [102]
    assert ids(busy, {"user": "alice"}, 64003, "carol", ["art"]) == []
    assert ids(busy, {"job": "102", "neighbours": "1"}, 64003, "carol", ["art"]) == [102]
    for query in ({"job": "103"}, {"state": "1"}):
        with pytest.raises(ForbiddenError):
            ids(busy, query, 64003, "carol", ["art"])
    assert ids(busy, {}, 64002, "alice", ["art"]) == [101, 102, 103, 104, 105]


@pytest.mark.parametrize("query", [{"job": "x"}, {"colour": "red"}, {"state": "yes"}, {"user": "a," * 6000}])
def test_bad_questions(query):
    with pytest.raises(UsageError):
        PriorityQuery.from_parameters(query)


# --- the bound on waiting per user -----------------------------------------------------------------------


def parked(count, **more):
    return [
        {"uid": 7, "user": "mallory", "submit_s": NOW - 3 * DAY - n, "time_limit_s": 60.0} | more
        for n in range(count)
    ]


def test_parked_jobs_do_not_delay_the_oldest_jobs_of_other_users():
    honest = {"uid": 8, "user": "bob", "submit_s": NOW - 2 * DAY, "time_limit_s": 9 * HOUR}
    found = engine("sjf", aged_jobs_per_user=5).cycle(queue(honest, *parked(500)), NOW)
    assert found.place[0] == 6
    assert explanation.Explainer(found).why(1).startswith("Place")
    assert "5 jobs of its user go before" in explanation.Explainer(found).why(1)


def test_started_jobs_count_toward_the_aged_jobs_of_a_user():
    """Started jobs of a user count toward the user's maximum number of aged jobs.

    An aged job has waited so long that it is ranked before other jobs. Without this rule, the waiting jobs
    of one user would start one after another, always ahead of the jobs of other users.
    """
    honest = {"uid": 8, "user": "bob", "submit_s": NOW - 2 * DAY, "time_limit_s": 9 * HOUR}
    engine_state = EngineState(DecayedUsage(7 * DAY))
    ranker = engine("sjf", engine_state, aged_jobs_per_user=5)
    started = [
        running(job_id=9000 + n, array_job_id=9000, uid=7, submit_s=NOW - 3 * DAY, start_s=NOW - 60.0 * n)
        for n in range(5)
    ]
    assert ranker.cycle(queue(honest, *parked(50), *started), NOW).place[0] == 1
    later = NOW + 600  # they have ended
    assert ranker.cycle(queue(honest, *parked(50), now=later), later).place[0] == 1
    much_later = NOW + 2 * DAY
    assert ranker.cycle(queue(honest, *parked(50), now=much_later), much_later).place[0] == 6
