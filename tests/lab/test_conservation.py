"""Tests that no energy is lost or doubled on a simulated cluster.

For each node and hour, the sum of the jobs' energy, idle energy and unattributed energy must equal the
integral of the node's power. Jobs share nodes; some jobs are cancelled, requeued or array tasks. Agents are
killed and nodes fail. The deliveries are stored on SQLite, MariaDB and PostgreSQL. The answers of the three
databases are equal byte by byte.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from slurm_energy.accounting.engine import Database
from slurm_energy.accounting.records import record_store
from slurm_energy.accounting.records.periods import read_periods, store_periods
from slurm_energy.accounting.schema import migrations, tables
from slurm_energy.accounting.usage.usage_queries import UsageQuery, read_usage
from slurm_energy.accounting.usage.usage_rollup import UsageRollup
from slurm_energy.node_period import NodePeriod
from slurm_energy.records import EnergyRecord
from slurm_energy_lab.virtual_cluster.shared_nodes import NodeHistory, SharedNodes, draw_shared_jobs

pytestmark = pytest.mark.slow

MAX_DEVIATION = 0.001
NOW = 1_900_000_000.0


@dataclass
class Run:
    """Result of a simulated run of a cluster: the true energy, and what the agents delivered.

    Attributes:
        period_s: length of the accounting periods in seconds.
        jobs: number of jobs that started.
        histories: true energy by node.
        records, periods: records and periods that all nodes delivered.
    """

    period_s: int
    jobs: int
    histories: dict[str, NodeHistory]
    records: list[dict[str, Any]] = field(default_factory=list)
    periods: list[dict[str, Any]] = field(default_factory=list)

    def read_periods(self) -> list[NodePeriod]:
        return [NodePeriod.from_json(entry["period"]) for entry in self.periods]

    def job_records(self) -> list[EnergyRecord]:
        records = [EnergyRecord.from_json(entry["record"]) for entry in self.records]
        return [record for record in records if record.step is None]


@dataclass(frozen=True)
class Size:
    """Size of a test: nodes, seconds, jobs, period length, faults of each kind, and longest kernel.

    The period length `period_s` and the time of the longest kernel `longest_s` are in seconds.
    """

    nodes: int
    seconds: int
    jobs: int
    period_s: int
    faults: int
    longest_s: float


SMALL = Size(2, 300, 20, 120, 1, 100.0)
LARGE = Size(8, 5 * 3600, 500, 3600, 6, 500.0)
SIZES = [pytest.param(SMALL, id="small"), pytest.param(LARGE, id="500 jobs", marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Size], Run]:
    """Return a function that simulates a cluster of a given size and returns the result of the run.

    Each size is simulated only once.
    """
    runs: dict[Size, Run] = {}

    def run(size: Size) -> Run:
        if size not in runs:
            folder = tmp_path_factory.mktemp("cluster")
            options = {"period_s": size.period_s, "faults": size.faults, "seed": 7}
            jobs = draw_shared_jobs(size.jobs, 5, size.longest_s)
            cluster = SharedNodes(folder, size.nodes, size.seconds, jobs, **options)
            cluster.run()
            made = Run(size.period_s, cluster.started, {node.name: node.history for node in cluster.nodes})
            for records, periods in cluster.spooled():
                made.records += records
                made.periods += periods
            runs[size] = made
        return runs[size]

    return run


def hours(run: Run) -> Iterator[tuple[str, int, float, float]]:
    """Yield (node, start of the hour, measured joules, true joules) for each hour of each node.

    The joules are sums over the energy periods that begin in the hour.
    """
    measured: Counter[tuple[str, int]] = Counter()
    truth: Counter[tuple[str, int]] = Counter()
    for period in run.read_periods():
        key = period.node, period.start // run.period_s
        measured[key] += sum(energy.measured_uj for energy in period.components.values()) / 1e6
        truth[key] += run.histories[period.node].between(period.start, period.end)
    for key in sorted(measured):
        yield key[0], key[1] * run.period_s, measured[key], truth[key]


@pytest.mark.parametrize("size", SIZES)
def test_each_node_and_hour_has_the_energy_of_the_emulator(size: Size, run_of: Callable[[Size], Run]) -> None:
    run = run_of(size)
    assert run.jobs == size.jobs
    deviations = {(node, start): (uj - true) / true for node, start, uj, true in hours(run)}
    worst = max(deviations, key=lambda key: abs(deviations[key]))
    print(f"{len(deviations)} node hours, worst deviation {deviations[worst]:.2e} on {worst}")
    assert abs(deviations[worst]) <= MAX_DEVIATION
    assert len(deviations) >= size.nodes * (size.seconds // size.period_s)
    for node, history in run.histories.items():  # no second is in two periods
        made = sorted((p.start, p.end) for p in run.read_periods() if p.node == node)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(made))
        missing_s = len(history.joules) - 1 - sum(end - start for start, end in made)
        print(f"{node}: {history.failures} failures, {history.down_s} s down, {missing_s} s missing")
        # A failed node loses the time since its last checkpoint and the sample before it.
        assert history.down_s <= missing_s <= history.down_s + 21 * history.failures


@pytest.mark.parametrize("size", SIZES)
def test_the_periods_of_each_run_of_a_job_are_its_record(size: Size, run_of: Callable[[Size], Run]) -> None:
    run = run_of(size)
    of_periods: dict[tuple[str, int, int], Counter[str]] = {}
    for period in run.read_periods():
        for job in period.jobs:
            key = period.node, job.job_id, job.restart_count
            of_periods.setdefault(key, Counter()).update(job.energy_uj)
    of_records = {
        (record.node, record.job_id, record.restart_count): Counter(
            {
                part.name: round((part.energy_joules or 0.0) * 1e6)
                for part in record.components
                if part.name != "node"
            }
        )
        for record in run.job_records()
    }
    assert len(of_records) >= size.jobs
    assert {key: +energy for key, energy in of_periods.items() if +energy} == {
        key: +energy for key, energy in of_records.items() if +energy
    }
    assert any(restart for *_, restart in of_records)


def fill(database: Database, run: Run, seed: int) -> None:
    """Store all records and periods of a simulated run in random order and in batches.

    A fifth of the records and of the periods is delivered twice.
    """
    numbers = random.Random(seed)
    records = run.records + numbers.sample(run.records, len(run.records) // 5)
    periods = run.periods + numbers.sample(run.periods, len(run.periods) // 5)
    numbers.shuffle(records)
    numbers.shuffle(periods)
    with database.connect() as connection:
        for first in range(0, len(records), 50):
            items, refusals = record_store.read_items(records[first : first + 50], now=NOW)
            assert not refusals
            assert not record_store.store(connection, items, NOW)[1]
        for first in range(0, len(periods), 7):
            made, refusals = read_periods(periods[first : first + 7], now=NOW)
            assert not refusals
            assert not store_periods(connection, made, NOW)[1]
        rollup = UsageRollup()
        while rollup.advance(connection, NOW):
            continue


def answer(location: str | Path, run: Run) -> str:
    """Fill a database with the data of a run, and return its contents as text for comparison.

    The text also contains the sums of every hour.
    """
    database = Database(location)
    try:
        fill(database, run, 3)
        edges = tuple(sorted({period.start // run.period_s * run.period_s for period in run.read_periods()}))
        with database.connect() as connection:
            rows = [
                [list(row) for row in connection.execute(select(*_columns(table)).order_by(*_columns(table)))]
                for table in (tables.node_periods, tables.periods, tables.records)
            ]
            usage = read_usage(connection, UsageQuery((*edges, edges[-1] + run.period_s), count_jobs=True))
        sums = [
            sorted((str(usage.groups.get(group)), values) for group, values in interval.sums.items())
            for interval in usage.intervals
        ]
        return json.dumps([rows, sums])
    finally:
        database.close()


def _columns(table: Any) -> list[Any]:
    return [column for column in table.c if column.name not in ("id", "usage_group", "job")]


@pytest.mark.parametrize("size", SIZES)
def test_the_stores_give_equal_answers(
    size: Size, run_of: Callable[[Size], Run], store_location: str, tmp_path: Path
) -> None:
    run = run_of(size)
    reference = tmp_path / "reference.db"
    migrations.prepare(reference)
    text = answer(store_location, run)
    assert text == answer(reference, run)
    _, periods, records = json.loads(text)[0]
    total = sum(energy.measured_uj for p in run.read_periods() for energy in p.components.values())
    assert sum(row[-1] for row in periods) == total
    assert len(records) == len(run.records)
    names = [column.name for column in _columns(tables.periods)]
    of_hour: Counter[tuple[str, int]] = Counter()
    for row in periods:
        named = dict(zip(names, row, strict=True))
        of_hour[named["node"], named["start"] // run.period_s * run.period_s] += named["total_uj"]
    for node, start, _, true in hours(run):
        assert of_hour[node, start] / 1e6 == pytest.approx(true, rel=MAX_DEVIATION)
