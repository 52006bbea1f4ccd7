"""Receiver of energy records that agents deliver.

A delivery is parsed, the sender is checked, and the records are stored. The response contains a result for
each record.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.accounting.records import record_store
from slurm_energy.accounting.records.joint_storage import StorageResult, store_together
from slurm_energy.accounting.records.plausibility import PlausibilityCheck
from slurm_energy.accounting.records.record_store import DeliveredRecord, Refusal, RefusalOutcome
from slurm_energy.config import Config
from slurm_energy.controller.http.node_hosts import NodeHosts, Sender
from slurm_energy.controller.http.sender_check import ItemSource, refuse_foreign
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.records.write_batches import WriteBatches
from slurm_energy.errors import UsageError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.records import SCHEMA_VERSION

_READERS: Final = 2
"""Maximum number of deliveries that are unpacked at the same time."""
SMALL_BODY_BYTES: Final = 16 << 10
"""Bodies up to this size are processed in the event loop: a change of threads costs more than the work."""
MAX_NODES: Final = 100_000
_MAX_COUNT: Final = 1 << 53
_COUNTS: Final = ("spooled", "rejected")


@dataclass(frozen=True, slots=True)
class _Delivery:
    """A parsed delivery of records.

    Attributes:
        items: valid records.
        refusals: refused records, each with the reason.
        node: the node that claims to have sent the delivery; None means not stated.
        counts: numbers of records that the sending node still stores, by the keys `spooled` and `rejected`.
    """

    items: Sequence[DeliveredRecord]
    refusals: Sequence[Refusal]
    node: str | None
    counts: Mapping[str, int]


class DeliveryReceiver:
    """Receiver of deliveries from agents, which stores the delivered records.

    Args:
        config: returns the current configuration.
        store: the database.
        failures: log of refusals; a repeated refusal is logged once.
        hosts: addresses of nodes; None means that any sender may deliver records of any node.

    Attributes:
        pending_counts: numbers of `spooled` and `rejected` records on each node, from the last delivery of
            the node.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        failures: RepeatedFailureLog,
        hosts: NodeHosts | None = None,
    ) -> None:
        self.pending_counts: dict[str, Mapping[str, int]] = {}
        self._config = config
        self._store = store
        self._failures = failures
        self._hosts = hosts
        self._reading = asyncio.Semaphore(_READERS)
        self._writes = WriteBatches(self._write)

    def pending_counts_of(self, node: str) -> dict[str, int | None]:
        """Return the numbers of `spooled` and `rejected` records that a node stores; None if not reported."""
        counts = self.pending_counts.get(node, {})
        return {key: counts.get(key) for key in _COUNTS}

    async def receive(self, body: bytes, sender: Sender) -> dict[str, Any]:
        """Store the records of a delivery. Return the response, which has one result per record.

        Raises:
            UsageError: the body is not a delivery.
            UnavailableError: the database refused; nothing is stored.
        """
        check = PlausibilityCheck.with_site_values(self._config().controller.max_watts)
        async with self._reading:
            delivery = await asyncio.to_thread(_read, body, check)
        items, foreign = await self._check_sender(delivery.items, sender)
        accepted, refused = await self._writes.add(items)
        self._failures.clear("request")
        refusals = [*delivery.refusals, *foreign, *refused]
        self._note(delivery, sender, refusals)
        return delivery_response(accepted, refusals)

    async def _write(self, deliveries: Sequence[Sequence[DeliveredRecord]]) -> list[StorageResult]:
        return await self._store.write(store_together, deliveries, time.time(), record_store.store)

    async def _check_sender(
        self, items: Sequence[DeliveredRecord], sender: Sender
    ) -> tuple[list[DeliveredRecord], list[Refusal]]:
        """Return the records that the sender may deliver, and refusals of all other records."""
        sources = [ItemSource(item.index, item.record.record_id, item.record.node) for item in items]
        mode = self._config().controller.record_hosts
        refusals = await refuse_foreign(self._hosts, mode, sources, sender, "energy record")
        refused = {refusal.index for refusal in refusals}
        return [item for item in items if item.index not in refused], refusals

    def _note(self, delivery: _Delivery, sender: Sender, refusals: Sequence[Refusal]) -> None:
        if delivery.node is not None and (
            delivery.node in self.pending_counts or len(self.pending_counts) < MAX_NODES
        ):
            self.pending_counts[delivery.node] = delivery.counts
        if refusals:
            more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
            message = f"{refusals[0].outcome}: {refusals[0].error}{more}"
            self._failures.report(f"records from {sender.peer}", message)


def _read(body: bytes, check: PlausibilityCheck) -> _Delivery:
    data = read_object(body)
    items, refusals = record_store.read_items(data.get("items"), check)
    node = data.get("node")
    counts = {key: data[key] for key in _COUNTS if _is_count(data.get(key))}
    return _Delivery(items, refusals, node if _is_name(node) else None, counts)


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a request body and return the JSON object in it.

    Raises:
        UsageError: the body is not a JSON object.
    """
    try:
        data = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError("body is not JSON", str(error)[:120]) from None
    if not isinstance(data, dict):
        raise UsageError("body is not a JSON object")
    return data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 256 and value.isprintable()


def delivery_response(
    accepted: Sequence[str], refusals: Sequence[Refusal], schema: int = SCHEMA_VERSION
) -> dict[str, Any]:
    """Return senergyctld's response to items (for example records) that an agent delivered.

    Args:
        accepted: ids of the items that are in the database.
        refusals: items that were refused, each with the reason.
        schema: newest schema version of items that this release of senergyctld reads.
    """
    lists: dict[str, list[dict[str, Any]]] = {str(outcome): [] for outcome in RefusalOutcome}
    for refusal in refusals:
        entry = {"index": refusal.index, "record_id": refusal.record_id, "error": refusal.error}
        lists[refusal.outcome].append(entry)
    return {"accepted": list(accepted), **lists, "version": __version__, "schema": schema}
