"""The three stores give byte-equal answers, whatever names and numbers they store."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import pytest
from store_examples import Accounting, item, job

from slurm_energy.accounting import record_queries
from slurm_energy.accounting.record_selection import RecordSelection, Visibility
from slurm_energy.reports.trace import encode_trace

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
