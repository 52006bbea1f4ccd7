"""Tests of the storage of deliveries that arrive while a transaction is running.

These deliveries are stored together in the next transaction. Each delivery gets its own result.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from period_examples import period
from sqlalchemy import func, select
from store_examples import NOW
from store_examples import record as example

from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.records import record_store
from slurm_energy.accounting.records.joint_storage import store_together
from slurm_energy.accounting.records.periods import DeliveredPeriod, store_periods
from slurm_energy.accounting.schema import migrations, tables
from slurm_energy.controller.records import write_batches
from slurm_energy.controller.records.write_batches import WriteBatches
from slurm_energy.errors import UnavailableError
from slurm_energy.reports.trace import encode_trace


class Writes:
    """Stand-in for the database writer. It stores the deliveries, which are lists of numbers.

    A transaction with the number 13 fails.
    """

    def __init__(self) -> None:
        self.transactions: list[list[list[int]]] = []

    async def write(self, deliveries: Sequence[Sequence[int]]) -> list[int]:
        self.transactions.append([list(delivery) for delivery in deliveries])
        await asyncio.sleep(0)
        if any(13 in delivery for delivery in deliveries):
            raise UnavailableError("database", "13")
        return [sum(delivery) for delivery in deliveries]


def add_all(deliveries: Sequence[Sequence[int]], monkeypatch: pytest.MonkeyPatch) -> tuple[Writes, list[Any]]:
    monkeypatch.setattr(write_batches, "MIN_INTERVAL_S", 0.0)
    writes = Writes()

    async def story() -> list[Any]:
        batches = WriteBatches(writes.write)
        added = (batches.add(delivery) for delivery in deliveries)
        return await asyncio.gather(*added, return_exceptions=True)

    return writes, asyncio.run(story())


def test_waiting_deliveries_share_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    writes, results = add_all([[1], [2, 3], [], [4]], monkeypatch)
    assert results == [1, 5, 0, 4]
    assert writes.transactions == [[[1], [2, 3], [], [4]]]


def test_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_batches, "MAX_ITEMS", 3)
    monkeypatch.setattr(write_batches, "MAX_DELIVERIES", 2)
    writes, results = add_all([[1] * 9, [2], [3], [4], [5, 6, 7]], monkeypatch)
    assert results == [9, 2, 3, 4, 18]
    assert writes.transactions == [[[1] * 9], [[2], [3]], [[4]], [[5, 6, 7]]]


def test_a_delivery_that_the_database_refuses_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    writes, results = add_all([[1], [13], [2]], monkeypatch)
    assert [results[0], results[2]] == [1, 2]
    assert isinstance(results[1], UnavailableError)
    assert writes.transactions == [[[1], [13], [2]], [[1]], [[13]], [[2]]]


def test_each_delivery_gets_the_results_of_its_own_records(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    migrations.prepare(path)
    raw = [example(number, record_id=f"id{number}") for number in range(4)]
    first, _ = record_store.read_items([{"record": raw[0]}, {"record": raw[1]}], now=NOW)
    second, _ = record_store.read_items([{"record": raw[2]}, {"record": raw[0]}, {"record": raw[3]}], now=NOW)
    with connect(path) as connection:

        def store(one: Any, items: Any, received: float) -> Any:
            accepted, refusals = record_store.store(one, items, received)
            by_id = {item.item_id: item.index for item in items}
            refused = record_store.Refusal(by_id["id3"], "id3", "no")
            return [item for item in accepted if item != "id3"], [*refusals, refused]

        results = store_together(connection, [first, second], NOW, store)
        count = connection.execute(select(func.count()).select_from(tables.records)).scalar_one()
    assert [accepted for accepted, _ in results] == [["id0", "id1"], ["id2", "id0"]]
    assert [[refusal.index for refusal in refused] for _, refused in results] == [[], [2]]
    assert count == 4


def test_a_record_without_an_attachment_that_is_too_large_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent would send a record that is not confirmed again and again."""
    monkeypatch.setattr(record_store, "backend_of", lambda _: SimpleNamespace(max_text_bytes=lambda _: 500))
    path = tmp_path / "a.db"
    migrations.prepare(path)
    raw = [example(number, record_id=f"id{number}") for number in range(3)]
    seen = {"node": raw[0]["node"], "series": [], "ranks": [], "later": random.Random(1).randbytes(500).hex()}
    trace = encode_trace(1000.0, 1.0, {f"gpu[{number}]": [1.0] * 9 for number in range(50)})
    items, refusals = record_store.read_items(
        [
            {"record": raw[0]},
            {"record": raw[1], "observation": seen},
            {"record": raw[2], "observation": seen, "trace": trace},
        ],
        now=NOW,
    )
    assert not refusals
    with connect(path) as connection:
        ((accepted, refused),) = store_together(connection, [items], NOW, record_store.store)
        count = connection.execute(select(func.count()).select_from(tables.records)).scalar_one()
    assert count == 3 and accepted == ["id0", "id1", "id2"]
    without_trace, without_observation = (
        record_store.RefusalOutcome.TRACE_REJECTED,
        record_store.RefusalOutcome.OBSERVATION_REJECTED,
    )
    assert sorted((refusal.index, refusal.outcome) for refusal in refused) == [
        (1, without_observation),
        (2, without_observation),
        (2, without_trace),
    ]


def test_periods_of_several_nodes_are_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    migrations.prepare(path)
    made = [period(start=3600 * number, node=f"n{number}") for number in (1, 2, 3)]
    deliveries = [[DeliveredPeriod(0, one, "{}")] for one in (*made, made[0])]
    with connect(path) as connection:
        for _ in range(2):
            results = store_together(connection, deliveries, NOW, store_periods)
            assert [accepted for accepted, _ in results] == [[one.period_id] for one in (*made, made[0])]
        count = connection.execute(select(func.count()).select_from(tables.node_periods)).scalar_one()
    assert count == 3


@pytest.mark.parametrize("fault", [ValueError("13"), RecursionError("13")])
def test_an_unexpected_error_of_one_delivery_fails_no_other(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr(write_batches, "MIN_INTERVAL_S", 0.0)

    async def write(deliveries: Sequence[Sequence[int]]) -> list[int]:
        if any(13 in delivery for delivery in deliveries):
            raise fault
        return [sum(delivery) for delivery in deliveries]

    async def story() -> list[Any]:
        batches = WriteBatches(write)
        added = (batches.add(delivery) for delivery in ([1], [13], [2]))
        return await asyncio.gather(*added, return_exceptions=True)

    assert asyncio.run(story()) == [1, fault, 2]
