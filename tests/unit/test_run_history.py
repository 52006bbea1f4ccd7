"""Storage of finished runs in the run history.

Each run is stored once and with all values, and the history stays bounded. This holds even if
the controller is killed at any moment.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from store_examples import NOW, Accounting, item, job, record

from slurm_energy.accounting import engine
from slurm_energy.accounting.decisions import DEFER, SUSPEND, Decision, save
from slurm_energy.accounting.history import run_history, start_predictions
from slurm_energy.accounting.schema import migrations
from slurm_energy.oracle.history.observed_run import RunEnding
from slurm_energy.slurm.tres import RequestedResources, parse_tres

TRES = "cpu=4,mem=1G,node=2,gres/gpu:a100=2"


@pytest.fixture
def store(tmp_path):
    return Accounting(tmp_path)


def learn(store, now=NOW):
    with engine.connect(store.path) as connection:
        return run_history.store_finished_runs(connection, now)[0]


def remembered(store):
    with engine.connect(store.path, read_only=True) as connection:
        return list(run_history.read_runs(connection))


def test_a_run_is_learned_once_with_all_known_values(store):
    more = {"policy": "edp", "requested": {"gpu_cap_watts": "250"}, "gpus": (0, 1)}
    store.deliver(
        item(job_id=7, node="n1", start=1000.2, end=1100.1, fingerprint="f" * 16, **more),
        item(job_id=7, node="n2", start=1000.1, end=1100.4, **more),
        item(job_id=7, node="n1", step="batch"),
    )
    allocated = "billing=128,cpu=128,mem=1.5G,node=2,gres/gpu:a100=2"
    store.learn(job(7, nodes=2, time_limit_s=3600.0, requested=TRES, allocated=allocated, state="TIMEOUT"))
    (run,) = learn(store)
    assert run == run_history.FinishedRun(
        end=1100.0,
        duration_s=pytest.approx(100.3),
        state="TIMEOUT",
        energy_joules=100.0,
        user="alice",
        account="physics",
        partition="cpu",
        name="job7",
        fingerprint="f" * 16,
        nodes=2,
        cpus=4,
        gpus=2,
        gpu_kind="a100",
        policy="edp",
        gpu_cap_watts=250.0,
        time_limit_s=3600.0,
        held_cpus=128,
        memory_mib=1536,
    )
    assert learn(store) == []
    assert remembered(store) == [run]
    store.deliver(item(job_id=7, node="n2", start=1000.1))  # delivered again, under another id
    store.learn(job(7, nodes=2))
    assert learn(store) == []


def test_learning_waits_for_the_records_of_all_nodes_for_a_limited_time(store):
    store.deliver(item(job_id=7, node="n1"))
    store.learn(job(7, nodes=2))
    assert learn(store) == []
    (run,) = learn(store, NOW + run_history.MISSING_AFTER_S)
    assert run.energy_joules is None and run.duration_s == 100.0
    store.deliver(item(job_id=7, node="n2"))
    assert learn(store, NOW + 9999) == []


def test_jobs_that_wait_for_records_delay_no_others(store, monkeypatch):
    monkeypatch.setattr(run_history, "BATCH", 3)
    for number in range(1, 10):
        store.deliver(item(job_id=number))
        store.learn(job(number, nodes=2 if number < 5 else 1))
    assert [run.name for run in learn(store)] == ["job5", "job6", "job7"]
    assert [run.name for run in learn(store)] == ["job8", "job9"]


def test_unfinished_jobs_are_not_learned(store):
    store.deliver(item(job_id=7), item(job_id=8))
    store.learn(job(7, state="RUNNING", end=None))
    assert learn(store) == []


def test_runs_of_a_requeued_job_are_distinguished(store):
    store.deliver(
        item(job_id=7, start=1000.0, end=1010.0), item(job_id=7, start=2000.0, end=2100.0, restart_count=1)
    )
    store.learn(
        job(7, submit=900.0, start=1000.0, end=1010.0, elapsed_s=10.0, state="NODE_FAIL"),
        job(7, submit=1010.0, start=2000.0, end=2100.0),
    )
    assert [(run.duration_s, run.state) for run in learn(store)] == [
        (10.0, "NODE_FAIL"),
        (100.0, "COMPLETED"),
    ]


def test_the_rest_of_a_suspended_run_is_only_a_lower_bound_of_the_run_time(store):
    made = [Decision(7, 500.0, 899.0, SUSPEND, "x"), Decision(8, 500.0, 899.0, DEFER, "x")]
    made.append(Decision(9, 901.0, 999.0, SUSPEND, "it did not take place"))
    made.append(Decision(10, 500.0, 1100.0, SUSPEND, "the clock of slurmctld is behind"))
    numbers = [one.job_id for one in made]
    store.deliver(*(item(job_id=number, start=1000.0, end=1010.0) for number in numbers))
    with engine.connect(store.path) as connection:
        save(connection, "c1", made)
    store.learn(*(job(number, submit=901.0, start=1000.0, end=1010.0) for number in numbers))
    states = {run.name: run.state for run in learn(store)}
    expected = ["CONTINUED", "COMPLETED", "COMPLETED", "CONTINUED"]
    assert [states[f"job{number}"] for number in numbers] == expected
    assert not RunEnding.of_state("CONTINUED").by_itself


def test_measured_time_counts_unless_it_contradicts_slurm(store):
    """The duration of a run is the time measured by the nodes, unless it is far from Slurm's time.

    The nodes measure fractions of seconds. In the test, a measured time that differs much from Slurm's is
    corrected to within 1 s of Slurm's.
    """
    spans = {1: (0.4, 1.3), 2: (0.0, 50.0), 3: (0.0, 0.2)}
    for number, (first, last) in spans.items():
        store.deliver(item(job_id=number, start=1000 + first, end=1000 + last))
        store.learn(job(number, start=1000.0, end=1010.0, elapsed_s={1: 1.0, 2: 10.0, 3: 10.0}[number]))
    assert [run.duration_s for run in sorted(learn(store), key=lambda run: run.name)] == [
        pytest.approx(0.9),
        11.0,
        9.0,
    ]


@pytest.mark.slow
def test_runs_per_key_are_bounded_and_old_ones_deleted(store):
    for number in range(1, 101):
        store.deliver(item(job_id=number, start=1000.0 + number, end=1100.0 + number))
        store.learn(job(number, name="same", start=1000.0 + number, end=1100.0 + number))
        learn(store)
    store.deliver(item(job_id=200))
    store.learn(job(200, name="other"))
    learn(store)
    kept = remembered(store)
    assert Counter(run.name for run in kept) == {"same": run_history.RUNS_PER_KIND, "other": 1}
    assert min(run.end for run in kept if run.name == "same") == 1100.0 + 37
    with engine.connect(store.path) as connection:
        assert run_history.delete_old_runs(connection, 1150.0) == 14
    assert min(run.end for run in remembered(store)) >= 1150.0


@pytest.mark.slow
def test_the_total_number_of_runs_is_bounded(store, monkeypatch):
    monkeypatch.setattr(run_history, "MAX_RUNS", 20)
    for number in range(1, 31):
        store.deliver(item(job_id=number, end=1100.0 + number))
        store.learn(job(number, end=1100.0 + number))
    learn(store)
    with engine.connect(store.path) as connection:
        assert run_history.delete_old_runs(connection, 0.0) == 10
        assert run_history.delete_old_runs(connection, 0.0) == 0
    assert min(run.end for run in remembered(store)) == 1111.0


def test_the_history_includes_runs_of_an_older_release(tmp_path, monkeypatch):
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", 1)
    store = Accounting(tmp_path)
    with engine.connect(store.path) as connection:
        connection.exec_driver_sql(
            "INSERT INTO jobs VALUES (1, 'c1', 7, 900, '7', 'old', 'physics', 'cpu', 'alice', 'COMPLETED', "
            "1000, 1100, 100, 1, NULL, NULL, NULL, NULL, 1, 1100)"
        )
        connection.exec_driver_sql(
            "INSERT INTO records VALUES (1, 'r1', 'c1', 'n1', 7, 0, '', 1000, 1100, 1000, NULL, NULL, NULL, "
            "'edp', 50, 1200, 1, ?)",
            (json.dumps(record(job_id=7)),),
        )
    monkeypatch.undo()
    migrations.prepare(store.path)
    assert [(run.name, run.nodes, run.gpus) for run in learn(store)] == [("old", 1, 0)]


CHILD = """
import sys, time
from pathlib import Path
from slurm_energy.accounting import engine
from slurm_energy.accounting.history import run_history
from slurm_energy.accounting.schema import migrations
with engine.connect(Path(sys.argv[1])) as connection:
    print("ready", flush=True)
    while True:
        if not run_history.store_finished_runs(connection, time.time())[0]:
            time.sleep(0.001)
"""


@pytest.mark.slow
def test_kill_9_while_learning_neither_loses_nor_duplicates(store, monkeypatch):
    """Each run is in the history exactly once although the process that stores runs is often killed.

    In the test, the process is killed repeatedly with SIGKILL while jobs end.
    """
    total, killed = 120, 0
    for number in range(1, total + 1):
        store.deliver(item(job_id=number))
    learner = None
    try:
        for number in range(1, total + 1):
            if learner is None:
                learner = subprocess.Popen(
                    [sys.executable, "-c", CHILD, str(store.path)], stdout=subprocess.PIPE
                )
                learner.stdout.readline()
            store.learn(job(number))
            if number % 10 == 0:
                time.sleep(0.0005 * (number // 10))
                learner.kill()
                assert learner.wait(60) == -signal.SIGKILL
                learner.stdout.close()
                learner, killed = None, killed + 1
    finally:
        if learner is not None:
            learner.kill()
            learner.wait(60)
    while learn(store):
        pass
    assert killed == total // 10
    assert Counter(run.name for run in remembered(store)) == {f"job{n}": 1 for n in range(1, total + 1)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TRES, RequestedResources(2, 4, 2, "a100", 1024)),
        ("cpu=1,gres/gpu=3,gres/gpu:h100=3", RequestedResources(None, 1, 3, "h100")),
        ("cpu=1,gres/nic:mlx5=2", RequestedResources(cpus=1)),
        ("gres/gpu=1,gres/gpu:h100=1,gres/fpga:a10=4", RequestedResources(gpus=1, gpu_kind="h100")),
        ("billing=1,cpu=x,node=1", RequestedResources(1, None, None, None)),
        ("mem=1500M", RequestedResources(memory_mib=1500)),
        ("mem=0.5T,cpu=2", RequestedResources(cpus=2, memory_mib=512 * 1024)),
        ("mem=1K", RequestedResources(memory_mib=1)),
        ("mem=7", RequestedResources(memory_mib=7)),
        ("mem=999999999999E", RequestedResources(memory_mib=1 << 50)),
        ("mem=,mem=lots", RequestedResources()),
        ("", RequestedResources()),
        (None, RequestedResources()),
    ],
)
def test_parsing_of_resource_lists(text, found):
    assert parse_tres(text) == found


def test_the_row_of_a_run_has_only_known_values(store):
    store.deliver(item(job_id=7))
    store.learn(job(7, account=None))
    learn(store)
    ((body,),) = store.rows("SELECT body FROM history")
    assert "account" not in json.loads(body)


def test_gpu_joules_and_the_prediction_at_the_start_are_stored(store):
    gpus = [
        {"name": name, "energy_joules": joules, "source": "x", "quality": "ok"}
        for name, joules in (("cpu", 50.0), ("gpu[0]", 30.0), ("gpu[1]", 10.0))
    ]
    known, unknown = item(job_id=7), item(job_id=8)
    known["record"]["components"] = [{**known["record"]["components"][0], **part} for part in gpus]
    known["record"]["components"] = [{**one, "quality": "measured"} for one in known["record"]["components"]]
    store.deliver(known, unknown)
    with engine.connect(store.path) as connection:
        start_predictions.save(connection, "c1", [(7, 1000.5, 40.0), (7, 900.0, 1.0), (8, 5000.0, 2.0)])
        start_predictions.save(connection, "other", [(8, 1000.0, 3.0)])
        assert start_predictions.since(connection, "c1", 950.0) == [(7, 1000.5, 40.0), (8, 5000.0, 2.0)]
    store.learn(job(7), job(8))
    first, second = sorted(learn(store), key=lambda run: run.name)
    assert (first.gpu_joules, first.predicted_s) == (40.0, 40.0)
    assert (second.gpu_joules, second.predicted_s) == (None, None)
    assert {run.predicted_s for run in remembered(store)} == {40.0, None}


def test_caps_of_a_site_policy_count_if_the_job_requested_none(store):
    store.deliver(
        item(job_id=7, policy="night"), item(job_id=8, policy="night", requested={"gpu_cap_watts": "90"})
    )
    store.learn(job(7), job(8))
    with engine.connect(store.path) as connection:
        runs, _ = run_history.store_finished_runs(connection, NOW, {"night": (None, 150.0)})
    assert sorted(run.gpu_cap_watts for run in runs) == [90.0, 150.0]


@pytest.mark.slow
def test_one_user_cannot_displace_the_runs_of_others(store, monkeypatch):
    monkeypatch.setattr(run_history, "MAX_RUNS", 20)
    for number in range(1, 61):
        store.deliver(item(job_id=number, start=number, end=number + 1.0))
        store.learn(job(number, user="alice" if number <= 5 else "mallory", start=number, end=number + 1.0))
    learn(store)
    with engine.connect(store.path) as connection:
        while run_history.delete_old_runs(connection, 0.0):
            pass
    assert Counter(run.user for run in remembered(store)) == {"alice": 5, "mallory": 15}
    assert max(run.end for run in remembered(store)) == 61.0


def test_old_predictions_are_deleted(store):
    with engine.connect(store.path) as connection:
        start_predictions.save(connection, "c1", [(7, 1000.0, 40.0), (8, 3000.0, 2.0)])
        run_history.delete_old_runs(connection, 2000.0)
        assert start_predictions.since(connection, "c1", 0.0) == [(8, 3000.0, 2.0)]
