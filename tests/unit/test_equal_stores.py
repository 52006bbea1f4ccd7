"""Tests that the three kinds of database return byte-equal responses to the same queries.

The tests store unusual names and random numbers, because the responses must be equal whatever is
stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random

import pytest
from period_examples import JOB, period
from store_examples import Accounting, item, job

from slurm_energy.accounting import grid_values, quotas
from slurm_energy.accounting.records import record_queries
from slurm_energy.accounting.records.periods import DeliveredPeriod, store_periods
from slurm_energy.accounting.records.record_selection import RecordSelection, Visibility
from slurm_energy.accounting.usage import quota_usage
from slurm_energy.accounting.usage.usage_rollup import UsageRollup
from slurm_energy.reports.trace import encode_trace

ENERGY = (quotas.QuotaResource.ENERGY, quotas.QuotaPeriod.MONTH)
pytestmark = pytest.mark.slow
NAMES = (
    *("a", "A", "a ", "ä", "z", "ß", "ss", "é", "e\u0301", "Ω", "🔋", "a_b", "a%b", "a\\b", "a\\\\"),
    *("'; DROP TABLE records; --", '"', "%s", "%(x)s", ":x", "?", "{}", "null", "", "0", "x" * 255),
)
QUERIES = (
    {},
    {"steps": "1", "duplicates": "1"},
    {"user": "a"},
    {"user": "ss,Ω"},
    {"account": "a,a\\b"},
    {"partition": "%s"},
    {"node": "n1,N1"},
    {"start": "1050", "end": "1100.5"},
    {"job": "3,5_1,7.batch"},
)


def deliveries(chance):
    for number in range(120):
        start = 1000.0 + chance.random() * 100
        trace = encode_trace(start, 0.1, {"cpu": [chance.random() for _ in range(5)]})
        yield item(
            record_id=f"{number:032x}",
            job_id=number % 40,
            node=chance.choice(["n1", "N1", "n2", "n10"]),
            start=start,
            end=start + chance.random() * 1e3,
            step=chance.choice([None, "batch", "0"]),
            restart_count=number // 100,
            user=chance.choice([name for name in NAMES if name]),
            partition=chance.choice([None, *NAMES]),
            tag=chance.choice(NAMES) or None,
            mean_watts=chance.random() * 100,
            trace=trace if chance.random() < 0.3 else None,
        )


def facts(chance):
    for number in range(35):
        shown = f"5_{number}" if number % 3 else str(number)
        name, account = chance.choice(NAMES), chance.choice([None, *NAMES])
        yield job(number, shown, name=name, account=account, elapsed_s=chance.random(), start=1000.0 + 0.1)


def answers(accounting):
    chance = random.Random(14)
    accounting.deliver(*deliveries(chance))
    accounting.learn(*facts(chance))
    with accounting.connect(read_only=True) as connection:
        for visible in (None, Visibility(1000), Visibility(7, frozenset(NAMES[:12]))):
            for query in QUERIES:
                selection = dataclasses.replace(RecordSelection.from_query(query), visible=visible)
                ids = record_queries.find_records(connection, selection)
                yield query, record_queries.records_json(connection, ids, with_traces=True)
        figures = record_queries.database_figures(connection)
        yield "figures", {key: value for key, value in figures.items() if key != "database_bytes"}
        for kind in ("account", "partition"):
            yield kind, sorted(record_queries.recorded_names(connection, kind, [*NAMES, "b"]))


def grid_answers(accounting):
    """Fill a database with carbon and price values, quotas and energies, and yield query results.

    A test compares the results from different database systems, which must be equal. The account names
    contain characters that databases may treat differently.
    """
    chance = random.Random(5)
    keys = [grid_values.SeriesKey("c1", "carbon", "uk", zone, "g/kWh") for zone in ("GB", "gb", "3")]
    names = [name for name in NAMES if name]
    with accounting.connect() as connection:
        for key in keys * 2:
            samples = [(t * 0.1, t * 0.1 + 0.1, chance.random()) for t in chance.sample(range(500), 200)]
            grid_values.save_samples(connection, key, samples, chance.random())
        grid_values.drop_before(connection, "carbon", 5.05)
        for name in names:
            one = quotas.Quota(name, chance.choice(NAMES), *ENERGY, chance.random() * 1e12, "J", 80.0)
            quotas.set_quota(connection, "c1", dataclasses.replace(one, reason=chance.choice(NAMES)), name)
        change = quotas.QuotaChange(1.0, "root", names[0], "", "removed")
        for user in NAMES:
            one = quotas.Quota(names[0], user, *ENERGY, 1.0, "J")
            yield "removed", quotas.remove_quota(connection, "c1", one, change)
        yield "quotas", quotas.read_quotas(connection, "c1")
        yield "changes", quotas.changes(connection, "c1", 0.0, 9e9, names[:9])
        for key in keys:
            yield key, grid_values.newest_end(connection, key)
            yield key, grid_values.read_samples(connection, key, 10.0, 30.0)
        delivered = [
            period(1_699_999_200 + hour * 3600, jobs={(n, 0): JOB for n in range(12)}) for hour in (0, 1)
        ]
        items = [DeliveredPeriod(index, one, "{}") for index, one in enumerate(delivered)]
        store_periods(connection, items, 1.7e9 + 9999)
        rollup = UsageRollup()
        while rollup.advance(connection, 1.7e9 + 9999):
            pass
        for user in NAMES:
            yield user, quota_usage.energy_parts(connection, "c1", NAMES, user, 1_700_001_000.0, 2e9)
            yield user, sorted(quota_usage.accounts_of(connection, "c1", user))


def grid_store(accounting):
    """Fill an accounting store with jobs whose users and accounts have unusual names.

    Examples are names with quotes, umlauts or SQL. Return the answers to the queries of `grid_answers`.
    """
    chance = random.Random(3)
    times = {"submit": 1_699_999_000.0, "start": 1_699_999_200.0, "end": 1_700_006_400.0}
    items = [item(job_id=n, start=times["start"], end=times["end"]) for n in range(12)]
    accounting.deliver(*items, now=1.7e9 + 9999)
    names = [(chance.choice(NAMES), chance.choice(NAMES)) for _ in range(12)]
    facts = [job(n, account=account, user=user, **times) for n, (account, user) in enumerate(names)]
    accounting.learn(*facts, now=1.7e9 + 9999)
    return list(grid_answers(accounting))


def test_grid_values_and_quotas_are_equal(tmp_path, database_servers):
    expected = grid_store(Accounting(tmp_path))
    assert any(parts for key, parts in expected if key in NAMES)
    for name in ("mariadb", "postgresql"):
        with contextlib.suppress(pytest.skip.Exception):
            assert grid_store(Accounting(database_servers.empty_store(name))) == expected


def test_answers_are_equal(tmp_path, database_servers):
    expected = list(answers(Accounting(tmp_path)))
    assert sum(len(records) for _, records in expected[: len(QUERIES)]) > 100
    compared = 0
    for name in ("mariadb", "postgresql"):
        with contextlib.suppress(pytest.skip.Exception):
            for one, other in zip(
                expected, answers(Accounting(database_servers.empty_store(name))), strict=True
            ):
                assert other == one
            compared += 1
    if not compared:
        pytest.skip("no database server")
