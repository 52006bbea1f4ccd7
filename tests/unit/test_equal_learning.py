"""All kinds of databases give equal results for the data that slurm-energy learns from runs.

The data are runs, tuning, decisions, predictions and consumption.
"""

from __future__ import annotations

import pytest
from stored_schemas import load_schema

from slurm_energy.accounting import decisions, engine
from slurm_energy.accounting.backups import backup, restore
from slurm_energy.accounting.history import run_history, start_predictions, tuning_runs, tuning_starts
from slurm_energy.accounting.history.tuning_starts import IssuedStart, JobRun, Pin, Program
from slurm_energy.accounting.schema import migrations
from slurm_energy.accounting.usage import consumption

NOW = 200_000.0


@pytest.fixture(scope="module")
def unlearned(tmp_path_factory):
    """A SQLite database with records and jobs from which nothing has been learned yet."""
    path = tmp_path_factory.mktemp("unlearned") / "senergy.db"
    load_schema(1, path)
    migrations.prepare(path)
    return path


@pytest.fixture
def stores(unlearned, tmp_path, database_servers):
    """Return the locations of three databases of different kinds with the same content.

    The SQLite database is the first. MariaDB and PostgreSQL follow.
    """
    backup.copy_sqlite(unlearned, tmp_path / "senergy.db", lambda done, total: None)
    locations = [str(tmp_path / "senergy.db")]
    for name in ("mariadb", "postgresql"):
        locations.append(database_servers.empty_store(name))
        database = engine.Database(locations[-1])
        restore.restore(unlearned, database, lambda done, total: None)
        database.close()
    return locations


def learn_runs(connection):
    start_predictions.save(connection, "c1", [(100, 1000.5, 700.0), (101, 4600.0, 650.0)])
    start_predictions.save(connection, "c1", [(101, 4600.0, 651.0)])
    yield start_predictions.since(connection, "c1", 1000.5)
    yield run_history.store_finished_runs(connection, NOW)
    yield run_history.store_finished_runs(connection, NOW)
    yield list(run_history.read_runs(connection))
    yield run_history.delete_old_runs(connection, 20_000.0)
    yield list(run_history.read_runs(connection))


def bound_history(connection):
    run_history.store_finished_runs(connection, NOW)
    yield run_history.delete_old_runs(connection, 0.0)
    yield list(run_history.read_runs(connection))
    for run in run_history.read_runs(connection):
        for _ in range(3):
            run_history._insert(connection, run)
    yield list(run_history.read_runs(connection))


def learn_tuning(connection):
    run_history.store_finished_runs(connection, NOW)
    jobs = tuning_runs.unlearned_jobs(connection, 100)
    yield jobs
    for repeated in range(2):
        stored = []
        for job in jobs:
            names = (job.user, "a100", job.fingerprint or "gpt", job.fingerprint, "gpt")
            stored.append((job.key, tuning_runs.StoredRun(*names, job.end, f'{{"n":{repeated}}}')))
        tuning_runs.store_learned(connection, stored)
    yield tuning_runs.unlearned_jobs(connection, 100)
    yield tuning_runs.find_runs(connection, None)
    yield tuning_runs.find_runs(connection, ["alice"], workload="gpt", hardware="a100", limit=3)
    yield tuning_runs.runs_of(connection, "bob", "a100", fingerprint=None, model="gpt")
    yield tuning_runs.site_runs(connection, "a100")
    yield tuning_runs.owners_of_models(connection)
    yield tuning_runs.forget(connection, "alice", "gpt")
    yield tuning_runs.drop_old(connection, 40_000.0)
    yield tuning_runs.find_runs(connection, None)


def start_and_pin(connection):
    program = Program("alice", "gpt", "a100")
    explore, plain = IssuedStart(program, True, '{"a":1}'), IssuedStart(program, False, "{}")
    for job_id in (1, 2):
        for _ in range(2):
            run = JobRun("c1", job_id, 0)
            yield tuning_starts.store_start(connection, run, explore, plain, {1, 2}, NOW + job_id)
    yield tuning_starts.exploring_jobs(connection, program)
    for point in ("{}", '{"watts":2}'):
        yield tuning_starts.set_pin(connection, Pin(program, point, "root", NOW))
    yield tuning_starts.set_pin(connection, Pin(program._replace(owner="Alice"), "{}", "root", NOW))
    yield tuning_starts.pins_of(connection, None)
    yield tuning_starts.pins_of(connection, ["alice", "bob"])
    yield tuning_starts.pin_of(connection, "alice", "a100", ["digest", "gpt"])
    yield tuning_starts.remove_pin(connection, program), tuning_starts.remove_pin(connection, program)
    yield tuning_starts.drop_starts(connection, NOW + 2)


def decide(connection):
    made = [
        decisions.Decision(100, 940.4, 950.0, "shape", 'it\'s "100%" \\ :x é雪', {"chosen": "gpu:1"}),
        decisions.Decision(104, 15340.0, 950.0, "requeue", "for 5", {"for_job": 5, "lost_joules": 0.1}),
        decisions.Decision(999, 1.0, 940.0, "shape", "unknown job"),
    ]
    decisions.save(connection, "c1", made)
    decisions.save(connection, "c1", [])
    yield decisions.since(connection, "c1", 945.0)
    yield decisions.since(connection, "C1", 0.0)
    yield decisions.of_records(connection, range(1, 40))
    yield decisions.drop_before(connection, 945.0)


def consume(connection):
    first = consumption.read_consumption(connection, 0, 0.0)
    yield first
    yield consumption.read_consumption(connection, first[3].row, 30_000.0)
    yield consumption.reread_consumption(connection, [first[5].row, first[0].row, 10**9])


@pytest.mark.slow
@pytest.mark.parametrize("story", [learn_runs, bound_history, learn_tuning, start_and_pin, decide, consume])
def test_all_stores_return_the_same(story, stores, monkeypatch):
    monkeypatch.setattr(run_history, "RUNS_PER_KIND", 2)
    monkeypatch.setattr(run_history, "MAX_RUNS", 15)
    monkeypatch.setattr(run_history, "_PAGE_ROWS", 4)
    monkeypatch.setattr(tuning_runs, "RUNS_PER_PROGRAM", 8)
    monkeypatch.setattr(tuning_runs, "MAX_RUNS", 5)
    results = []
    for location in stores:
        with engine.connect(location) as connection:
            results.append(list(story(connection)))
    assert any(results[0])
    assert results[1] == results[0]
    assert results[2] == results[0]
