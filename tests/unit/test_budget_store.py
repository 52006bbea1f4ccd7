"""Tests of what the database stores about power budgets.

It stores samples of power, the audit trail, limits that an operator has set (live limits), and the highest
power limit (ceiling) of each node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from slurm_energy.accounting import budgets, engine
from slurm_energy.accounting.budgets import BudgetChange, BudgetSample, LimitOverride


@pytest.fixture
def connection(store_location: str) -> Iterator[Connection]:
    with engine.connect(store_location) as opened:
        yield opened


def _sample(time: float, watts: float | None = 100.0, limit: float | None = 500.0) -> BudgetSample:
    return BudgetSample("all", time, 10.0, limit, watts, watts, 400.0, 50.0, 100.0 - time / 1e6, 0.0)


def test_samples_are_returned_in_order(connection: Connection) -> None:
    stored = [_sample(t) for t in (20.0, 0.0, 10.0)]
    budgets.save_samples(connection, "c", stored)
    assert budgets.samples(connection, "c", "all", 0.0, 30.0) == sorted(stored, key=lambda s: s.time)
    assert budgets.samples(connection, "d", "all", 0.0, 30.0) == []
    assert [s.time for s in budgets.samples(connection, "c", "all", 10.0, 20.0)] == [10.0]


def test_infinite_limits_and_unknown_powers_stay_unknown(connection: Connection) -> None:
    budgets.save_samples(connection, "c", [_sample(0.0, None, math.inf)])
    (sample,) = budgets.samples(connection, "c", "all", 0.0, 1.0)
    assert sample.limit_watts is None
    assert sample.measured_watts is None


def test_a_long_time_is_merged(connection: Connection) -> None:
    budgets.save_samples(connection, "c", [_sample(10.0 * i, float(i % 2)) for i in range(100)])
    merged = budgets.samples(connection, "c", "all", 0.0, 1000.0, limit=10)
    assert len(merged) == 10
    assert {s.span_s for s in merged} == {100.0}
    assert {s.measured_watts for s in merged} == {0.5}
    assert {s.max_measured_watts for s in merged} == {1.0}


def test_old_samples_are_merged_once(connection: Connection) -> None:
    budgets.save_samples(connection, "c", [_sample(10.0 * i) for i in range(90)])
    assert budgets.merge_old_samples(connection, 650.0) == 60
    assert budgets.merge_old_samples(connection, 650.0) == 0
    rows = budgets.samples(connection, "c", "all", 0.0, 900.0)
    assert [s.time for s in rows][:3] == [0.0, 300.0, 600.0]
    assert len(rows) == 2 + 30


def test_a_live_limit_ends(connection: Connection) -> None:
    change = BudgetChange(5.0, "all", "ann", "set", "400 W until 10", {"watts": 400.0})
    budgets.set_override(connection, "c", LimitOverride("all", 400.0, 10.0, "ann", 5.0), change)
    assert budgets.overrides(connection, "c", 9.0)["all"].watts == 400.0
    assert budgets.overrides(connection, "c", 10.0) == {}
    cleared = BudgetChange(6.0, "all", "bob", "clear", "the configured limit applies again")
    assert budgets.clear_override(connection, "c", "all", cleared)
    assert not budgets.clear_override(connection, "c", "all", cleared)
    assert budgets.changes(connection, "c", 0.0, 100.0) == [change, cleared]


def test_nodes_are_kept_and_forgotten(connection: Connection) -> None:
    budgets.save_nodes(connection, "c", 1.0, {"n1": "{}", "n2": "{}"})
    budgets.save_nodes(connection, "c", 2.0, {"n1": '{"a":1}'})
    budgets.forget_nodes(connection, "c", ["n2"])
    assert budgets.nodes(connection, "c") == {"n1": '{"a":1}'}
    assert budgets.nodes(connection, "d") == {}


def test_retention_deletes_old_rows(connection: Connection) -> None:
    budgets.save_samples(connection, "c", [_sample(0.0), _sample(100.0)])
    budgets.save_changes(connection, "c", [BudgetChange(0.0, None, None, "start", "started")])
    assert budgets.drop_before(connection, 50.0) == 2
    assert len(budgets.samples(connection, "c", "all", 0.0, 200.0)) == 1
