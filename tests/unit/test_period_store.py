"""Tests of the storage of energy periods in the database.

A period is the energy of one node in a time interval, divided among jobs. Each period is stored once.
The stored parts of a period add up to its total. Implausible values are rejected. If a period is bad,
the error names it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from period_examples import HOUR_S, period, period_parts
from property_examples import examples
from sqlalchemy import select
from store_examples import NOW

from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.records.periods import energy_rows, read_periods, store_periods
from slurm_energy.accounting.records.plausibility import MAX_WATTS, PlausibilityCheck
from slurm_energy.accounting.records.record_store import Refusal, RefusalOutcome
from slurm_energy.accounting.schema.tables import node_periods, periods
from slurm_energy.node_period import NodePeriod

pytestmark = pytest.mark.slow

START = int(NOW) // HOUR_S * HOUR_S - 24 * HOUR_S


class Database:
    """A test database that stores periods (energy of a node in an interval)."""

    def __init__(self, location: str) -> None:
        self.path = location

    def deliver(self, *made: NodePeriod | Any) -> tuple[list[str], list[Refusal]]:
        entries = [{"period": one.to_json() if isinstance(one, NodePeriod) else one} for one in made]
        items, refusals = read_periods(entries, now=NOW)
        with connect(self.path) as connection:
            accepted, refused = store_periods(connection, items, NOW)
        return accepted, [*refusals, *refused]

    def rows(self, table: Any) -> list[Any]:
        with connect(self.path, read_only=True) as connection:
            return [row._mapping for row in connection.execute(select(table).order_by(*table.primary_key))]


@pytest.fixture
def database(store_location: str) -> Database:
    return Database(store_location)


def test_a_period_and_its_rows(database: Database) -> None:
    energy = {"cpu": 5_000_000, "gpu[0]": 2, "gpu[1]": 3}
    one = period(
        START, jobs={(7, 1): energy}, idle={"cpu": 1, "gpu[0]": 0, "gpu[1]": 9}, unattributed={"cpu": 4}
    )
    one = replace(one, late_seconds=1.5, uncertain_seconds=2.5, extra=(("later", [1]),))
    assert database.deliver(one) == ([one.period_id], [])
    (head,) = database.rows(node_periods)
    assert (head["period_id"], head["extra"], head["received"]) == (one.period_id, '{"later":[1]}', NOW)
    assert (head["late_seconds"], head["uncertain_seconds"]) == (1.5, 2.5)
    columns = (
        "kind",
        "job_id",
        "restart_count",
        "uid",
        "cpu_uj",
        "dram_uj",
        "gpu_uj",
        "other_uj",
        "total_uj",
    )
    assert [tuple(row[name] for name in columns) for row in database.rows(periods)] == [
        ("idle", 0, 0, None, 1, None, 9, None, 10),
        ("job", 7, 1, 1000, 5_000_000, None, 5, None, 5_000_005),
        ("unattributed", 0, 0, None, 4, None, 0, None, 4),
    ]


@given(period_parts())
@examples(50)
def test_the_rows_of_a_period_add_up_to_the_meter(one: NodePeriod) -> None:
    measured = sum(energy.measured_uj for energy in one.components.values())
    assert sum(row["total_uj"] for row in energy_rows(one)) == measured


def test_a_period_is_stored_once(database: Database) -> None:
    made = [period(START + n * HOUR_S) for n in range(3)]
    ids = [one.period_id for one in made]
    assert database.deliver(*made, made[0]) == ([*ids, ids[0]], [])
    assert database.deliver(*made) == (ids, [])
    again = [replace(one, period_id=f"again{n}") for n, one in enumerate(made)]
    assert database.deliver(*again)[0] == [one.period_id for one in again]
    assert [head["period_id"] for head in database.rows(node_periods)] == ids
    assert len(database.rows(periods)) == 9


def test_other_nodes_and_clusters_are_apart(database: Database) -> None:
    made = [period(START), period(START, node="n2"), period(START, cluster="c2")]
    database.deliver(*made)
    assert len(database.rows(node_periods)) == 3


def test_bad_periods_are_named_and_hold_up_nothing(database: Database) -> None:
    good = period(START)
    newer = period(START + HOUR_S).to_json() | {"schema": 2}
    hot = period(START + HOUR_S, jobs={(1, 0): {"cpu": 10**18}})
    ahead, wrong = period(int(NOW) - HOUR_S + 700), period(int(NOW) + 90_000)
    accepted, refusals = database.deliver(good, newer, None, hot, ahead, wrong)
    assert accepted == [good.period_id]
    outcomes = {refusal.index: refusal.outcome for refusal in refusals}
    bad = RefusalOutcome.REJECTED
    assert outcomes == {1: RefusalOutcome.RETRY, 2: bad, 3: bad, 4: RefusalOutcome.RETRY, 5: bad}
    named = {refusal.index: refusal.record_id for refusal in refusals}
    assert named[3] == hot.period_id and named[2] is None


def test_text_that_no_database_takes_is_refused(database: Database) -> None:
    bad = period(START).to_json() | {"later": "\ud800"}
    good = period(START + HOUR_S)
    accepted, (refusal,) = database.deliver(bad, good)
    assert accepted == [good.period_id] and refusal.outcome is RefusalOutcome.REJECTED


@pytest.mark.parametrize(
    ("seconds", "late_s", "watts", "plausible"),
    [
        (HOUR_S, 0.0, 1.0, True),
        (HOUR_S, 0.0, 1.05, False),
        (60, 0.0, 1.9, True),  # a slow meter reports up to a minute late
        (60, 0.0, 2.1, False),
        (HOUR_S, 9 * HOUR_S, 9.9, True),
        (367 * 86400, 0.0, 0.001, False),
    ],
)
def test_plausible_power(seconds: int, late_s: float, watts: float, plausible: bool) -> None:
    energy = round(MAX_WATTS["gpu"] * watts * seconds * 1e6)
    one = period(int(NOW) - seconds, int(NOW), jobs={}, idle={"gpu[0]": energy}, late_seconds=late_s)
    assert bool(read_periods([{"period": one.to_json()}], PlausibilityCheck(), NOW)[0]) is plausible


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda e: st.lists(e, max_size=3)))
@examples(50)
def test_anything_else_is_refused(value: Any) -> None:
    items, refusals = read_periods([value, {"period": value}], now=NOW)
    assert (len(items), len(refusals)) == (0, 2)
