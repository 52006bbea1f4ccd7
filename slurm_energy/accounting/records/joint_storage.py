"""Storage of several deliveries in one transaction, with a result for each delivery.

A delivery is the list of records or periods in one request of an agent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy import Connection

from slurm_energy.accounting.records.periods import DeliveredPeriod
from slurm_energy.accounting.records.record_store import DeliveredRecord, Refusal, RefusalOutcome

ItemT = TypeVar("ItemT", DeliveredRecord, DeliveredPeriod)
StorageResult = tuple[list[str], list[Refusal]]
"""Ids of the items that are in the database now, and the refusals of other items."""
_STORED_OUTCOMES: Final = frozenset({RefusalOutcome.TRACE_REJECTED, RefusalOutcome.OBSERVATION_REJECTED})
"""Outcomes of records that are stored, without an attachment."""


def store_together(
    connection: Connection,
    deliveries: Sequence[Sequence[ItemT]],
    received: float,
    store: Callable[[Connection, Sequence[ItemT], float], StorageResult],
) -> list[StorageResult]:
    """Store deliveries in one transaction and return the result of each.

    Args:
        connection: connection of the writing thread.
        deliveries: the items of each delivery.
        received: current time, Unix seconds.
        store: function that stores items in one transaction. A refusal in its result names an item by index.
    """
    items = [item for delivery in deliveries for item in delivery]
    numbered = [dataclasses.replace(item, index=number) for number, item in enumerate(items)]
    accepted, refusals = store(connection, numbered, received)
    stored = set(accepted)
    by_number: dict[int, list[Refusal]] = {}
    for refusal in refusals:
        by_number.setdefault(refusal.index, []).append(refusal)
    results, number = [], 0
    for delivery in deliveries:
        own: StorageResult = ([], [])
        for item in delivery:
            refused = by_number.get(number, [])
            own[1].extend(dataclasses.replace(refusal, index=item.index) for refusal in refused)
            is_stored = all(refusal.outcome in _STORED_OUTCOMES for refusal in refused)
            if is_stored and item.item_id in stored:
                own[0].append(item.item_id)
            number += 1
        results.append(own)
    return results
