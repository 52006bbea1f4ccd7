"""Storage of delivered records in the database, each record exactly once.

An agent delivers records in an HTTP request. The response confirms the id of a record only after the
transaction that stores the record is committed. A record that was delivered before is confirmed
without being stored again. Such a record is recognised by its id. If the agent's spool was recreated,
the record may have another id. The record is then recognised by its cluster, node, job, restart
count, step and start. The response also names each record that was not stored, and states whether
this record is rejected permanently or must be sent again later.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, String, Table, select, tuple_

from slurm_energy.accounting.backends import backend_of
from slurm_energy.accounting.engine import error_reason, savepoint, transaction, value_errors
from slurm_energy.accounting.records import observations, traces
from slurm_energy.accounting.records.plausibility import ClockAheadError, PlausibilityCheck
from slurm_energy.accounting.schema import observation_tables, tables
from slurm_energy.accounting.upserts import insert_missing, insert_or_replace
from slurm_energy.accounting.usage.usage_rollup import note_changed_jobs
from slurm_energy.errors import UsageError
from slurm_energy.records import EnergyRecord, NewerSchemaError

MAX_ITEMS: Final = 10_000
MAX_RECORD_BYTES: Final = 1 << 20
MAX_TRACE_VALUES: Final = 16_000_000
MAX_DELIVERY_VALUES: Final = 64_000_000
"""Maximum number of trace values in a delivery; decompressing them takes about a second."""
_RESERVED_KEYS: Final = ("job", "trace")
"""Keys that senergyctld adds to a record in its responses."""
_MAX_INTEGER: Final = 2**63 - 1

_CHUNK: Final = 500  # values in a condition
_MAX_LENGTHS: Final = {
    name: column.type.length
    for name, column in tables.records.columns.items()
    if isinstance(column.type, String) and column.type.length
}
"""Maximum lengths of texts by column name. SQLite itself has no such limits."""


@dataclass(frozen=True, slots=True)
class DeliveredRecord:
    """A valid record with its JSON text, and its attachments if it has any.

    Attributes:
        index: position in the request.
        record: the parsed record.
        body: JSON text of the record as delivered. The text includes keys that have no column in the table
            and keys of a newer release.
        energy_joules: energy of the record; None means unknown.
        trace: JSON text of the power trace; None means no trace, or an invalid one.
        trace_end: end of the trace in Unix seconds; None means no trace.
        observation: JSON text of the observation; None means no observation, or an invalid one.
    """

    index: int
    record: EnergyRecord
    body: str
    energy_joules: float | None = None
    trace: str | None = None
    trace_end: float | None = None
    observation: str | None = None

    @property
    def item_id(self) -> str:
        """Unique id of the record."""
        return self.record.record_id


class RefusalOutcome(StrEnum):
    """Outcome for a delivered record that is not stored completely.

    Attributes:
        REJECTED: the record is invalid and will never be stored.
        RETRY: the record cannot be stored by this release, or not yet; the agent sends it again.
        TRACE_REJECTED: the record is stored without its trace, which is invalid.
        OBSERVATION_REJECTED: the record is stored without its observation, which is invalid.
    """

    REJECTED = "rejected"
    RETRY = "retry"
    TRACE_REJECTED = "traces_rejected"
    OBSERVATION_REJECTED = "observations_rejected"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a delivered record by senergyctld, of the whole record or of a part of it.

    Attributes:
        index: position of the record in the request.
        record_id: record id; None means that the id could not be parsed.
        error: reason of the refusal, one line of text.
        outcome: what happens to the record.
    """

    index: int
    record_id: str | None
    error: str
    outcome: RefusalOutcome = RefusalOutcome.REJECTED


def read_items(
    data: Any, check: PlausibilityCheck | None = None, now: float | None = None
) -> tuple[list[DeliveredRecord], list[Refusal]]:
    """Validate the `items` of a delivery.

    An invalid record does not affect the others. A record with an invalid trace or observation is accepted
    without the invalid attachment.

    Args:
        data: value of `items` in the request.
        check: plausibility bounds; None means the defaults.
        now: Unix seconds; None means the current time.

    Returns:
        The records to store, and the records that cannot be stored completely. A record with an invalid trace
        or observation is in both lists.

    Raises:
        UsageError: `data` is not a list, or has more than `MAX_ITEMS` elements.
    """
    if not isinstance(data, list):
        raise UsageError("delivery: 'items' is not a list")
    if len(data) > MAX_ITEMS:
        raise UsageError(f"delivery: more than {MAX_ITEMS} items", todo="send fewer at a time")
    check, now = check or PlausibilityCheck(), time.time() if now is None else now
    items: list[DeliveredRecord] = []
    refusals: list[Refusal] = []
    budget = MAX_DELIVERY_VALUES
    for index, entry in enumerate(data):
        raw = entry.get("record") if isinstance(entry, dict) else None
        try:
            record, body = _read_record(raw)
            check.check(record, now)
        except (NewerSchemaError, ClockAheadError) as error:
            refusals.append(Refusal(index, _id_of(raw), str(error), RefusalOutcome.RETRY))
            continue
        except (RecursionError, UsageError) as error:
            deep = isinstance(error, RecursionError)
            reason = "energy record: nested too deeply" if deep else str(error)
            refusals.append(Refusal(index, _id_of(raw), reason))
            continue
        trace: str | None = None
        end: float | None = None
        if budget <= 0:
            reason = f"delivery: more than {MAX_DELIVERY_VALUES} values of power traces: send fewer at a time"
            refusals.append(Refusal(index, record.record_id, reason, RefusalOutcome.RETRY))
            continue
        try:
            trace, end, values = _read_trace(entry.get("trace"), record)
            budget -= values
        except UsageError as error:
            budget -= error.values if isinstance(error, traces.TraceError) else 0
            refusals.append(Refusal(index, record.record_id, str(error), RefusalOutcome.TRACE_REJECTED))
        observation: str | None = None
        try:
            observation = observations.read_observation(entry.get("observation"), record.node)
        except UsageError as error:
            refusals.append(Refusal(index, record.record_id, str(error), RefusalOutcome.OBSERVATION_REJECTED))
        items.append(DeliveredRecord(index, record, body, record.energy_joules, trace, end, observation))
    return items, refusals


def store(
    connection: Connection, items: Sequence[DeliveredRecord], received: float
) -> tuple[list[str], list[Refusal]]:
    """Store records in one transaction. Skip records that the database rejects.

    Args:
        connection: connection of the writing thread.
        items: records from `read_items`.
        received: current time, Unix seconds.

    Returns:
        The ids of all given records that are in the database now, including records that were stored before,
        and the records that the database rejected.
    """
    items, attachments_refused = _without_long_attachments(connection, items)
    with transaction(connection):
        refusals = _insert(connection, items, received)
        refused = {refusal.index for refusal in refusals}
        stored = [item.record for item in items if item.index not in refused]
        note_changed_jobs(connection, ((one.cluster, one.job_id) for one in stored if one.step is None))
    accepted = [item.record.record_id for item in items if item.index not in refused]
    return accepted, [*attachments_refused, *refusals]


def _without_long_attachments(
    connection: Connection, items: Sequence[DeliveredRecord]
) -> tuple[list[DeliveredRecord], list[Refusal]]:
    """Remove attachments (power traces, observations) that are too large for the database server.

    The function returns the records without these attachments, and one refusal per removed attachment.
    """
    has_any = any(item.trace or item.observation for item in items)
    max_bytes = backend_of(connection).max_text_bytes(connection) if has_any else None
    if max_bytes is None:
        return list(items), []
    kept, refusals = [], []
    for item in items:
        why = "{}: {} bytes, more than the database server takes (max_allowed_packet)"
        if (size := _escaped_bytes(item.trace)) > max_bytes:
            reason, outcome = why.format("power trace", size), RefusalOutcome.TRACE_REJECTED
            refusals.append(Refusal(item.index, item.record.record_id, reason, outcome))
            item = dataclasses.replace(item, trace=None, trace_end=None)
        if (size := _escaped_bytes(item.observation)) > max_bytes:
            reason, outcome = why.format("observation", size), RefusalOutcome.OBSERVATION_REJECTED
            refusals.append(Refusal(item.index, item.record.record_id, reason, outcome))
            item = dataclasses.replace(item, observation=None)
        kept.append(item)
    return kept, refusals


def _escaped_bytes(text: str | None) -> int:
    """Return the size of a text in bytes when the database driver sends it.

    The driver adds a backslash before each quote and each backslash.
    """
    return len(text.encode()) + sum(map(text.count, "'\"\\")) if text else 0


def _insert(connection: Connection, items: Sequence[DeliveredRecord], received: float) -> list[Refusal]:
    """Insert all records at once. If the database rejects a value, insert the records one by one.

    Return the records that the database rejected. `received` is the time of arrival in Unix seconds.
    """
    try:
        with savepoint(connection, "items"):
            return _insert_rows(connection, items, received)
    except value_errors(connection) as error:
        if len(items) == 1:
            reason = f"energy record: not stored: {error_reason(error)}"
            return [Refusal(items[0].index, items[0].record.record_id, reason)]
        return [refusal for item in items for refusal in _insert(connection, [item], received)]


def _insert_rows(connection: Connection, items: Sequence[DeliveredRecord], received: float) -> list[Refusal]:
    """Insert records with their attachments, and return the records whose id belongs to another node."""
    insert_missing(connection, tables.records, [_row(item, received) for item in items])
    taken = _with_ids_of_other_nodes(connection, items)
    reason = "energy record: its record_id belongs to the record of another node"
    refusals = [Refusal(item.index, item.item_id, reason) for item in items if item.index in taken]
    items = [item for item in items if item.index not in taken]
    traced = {item.item_id: (item.trace_end, item.trace) for item in items if item.trace is not None}
    _insert_attachments(connection, tables.traces, traced)
    observed = {i.item_id: (i.record.end, i.observation) for i in items if i.observation is not None}
    _insert_attachments(connection, observation_tables.observations, observed)
    _note_nodes(connection, items, received)
    return refusals


def _with_ids_of_other_nodes(connection: Connection, items: Sequence[DeliveredRecord]) -> set[int]:
    """Return the indexes of the records whose record id is stored for another node.

    Users can read the id of a running job's record. A node that delivers a record with this id must not
    prevent the true record from being stored, or receive the attachments of the true record.
    """
    stored: dict[str, tuple[str, str]] = {}
    columns, ids = tables.records.c, [item.item_id for item in items]
    for first in range(0, len(ids), _CHUNK):
        own = columns.record_id.in_(ids[first : first + _CHUNK])
        rows = connection.execute(select(columns.record_id, columns.cluster, columns.node).where(own))
        stored.update((record_id, (cluster, node)) for record_id, cluster, node in rows)
    nodes = {item.index: (item.record.cluster, item.record.node) for item in items}
    return {item.index for item in items if stored.get(item.item_id, nodes[item.index]) != nodes[item.index]}


def _insert_attachments(
    connection: Connection, table: Table, bodies: Mapping[str, tuple[float | None, str | None]]
) -> None:
    """Insert the traces or the observations of records that are already stored.

    A body whose record id is not stored is skipped.

    Args:
        connection: connection of the writing thread.
        table: table of traces or of observations.
        bodies: end in Unix seconds and JSON text of each trace or observation, by record id.
    """
    records, ids = tables.records.c, list(bodies)
    for first in range(0, len(ids), _CHUNK):
        some = ids[first : first + _CHUNK]
        rows = connection.execute(select(records.id, records.record_id).where(records.record_id.in_(some)))
        values = [
            {"record": row, "end": bodies[record_id][0], "body": bodies[record_id][1]}
            for row, record_id in rows
        ]
        insert_missing(connection, table, values)


def _note_nodes(connection: Connection, items: Sequence[DeliveredRecord], received: float) -> None:
    """Store two times for each node with new records.

    The first is the end time of the node's newest record. The second is the time at which records of the
    node last arrived.
    """
    newest: dict[tuple[str, str], float] = {}
    for item in items:
        key = (item.record.cluster, item.record.node)
        newest[key] = max(newest.get(key, 0.0), item.record.end)
    nodes, keys = tables.nodes.c, sorted(newest)
    for first in range(0, len(keys), _CHUNK):
        some = keys[first : first + _CHUNK]
        stored = select(nodes.cluster, nodes.node, nodes.last_end)
        for cluster, node, end in connection.execute(
            stored.where(tuple_(nodes.cluster, nodes.node).in_(some))
        ).all():
            newest[cluster, node] = max(newest[cluster, node], end)
    rows = [
        {"cluster": cluster, "node": node, "last_end": newest[cluster, node], "last_received": received}
        for cluster, node in keys
    ]
    insert_or_replace(connection, tables.nodes, rows)


def _read_record(raw: Any) -> tuple[EnergyRecord, str]:
    record = EnergyRecord.from_json(raw)
    if record.step == "" or record.record_id == "":
        raise UsageError("energy record: empty step or record_id")
    if max(record.job_id, record.restart_count) > _MAX_INTEGER:
        raise UsageError("energy record: a number beyond 63 bits")
    for name, length in _MAX_LENGTHS.items():
        if len(getattr(record, name, None) or "") > length:
            raise UsageError(f"energy record: '{name}' is longer than {length} characters")
    for key in _RESERVED_KEYS:
        if key in raw:
            raise UsageError(f"energy record: key '{key}' is reserved for answers")
    try:
        body = json.dumps(raw, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(body.encode())
    except UnicodeEncodeError:
        raise UsageError("energy record: text that is not Unicode") from None
    except ValueError as error:
        raise UsageError("energy record: cannot be stored as JSON", str(error)[:120]) from None
    if size > MAX_RECORD_BYTES:
        raise UsageError("energy record: too long", f"{size} bytes, more than {MAX_RECORD_BYTES}")
    return record, body


def _read_trace(raw: Any, record: EnergyRecord) -> tuple[str | None, float | None, int]:
    """Check a delivered power trace.

    Return the trace as JSON text, the end of the trace in Unix seconds, and the number of values. `raw` is
    the trace as delivered. If it is None, the result is (None, None, 0).
    """
    if raw is None:
        return None, None, 0
    extent = traces.check_trace(raw, record.elapsed_s, MAX_TRACE_VALUES)
    try:
        body = json.dumps(raw, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise UsageError("power trace: cannot be stored as JSON", str(error)[:120]) from None
    return body, extent.end, extent.values


def _id_of(raw: Any) -> str | None:
    record_id = raw.get("record_id") if isinstance(raw, dict) else None
    return record_id[:256] if isinstance(record_id, str) else None


def _row(item: DeliveredRecord, received: float) -> dict[str, Any]:
    record = item.record
    return {
        "record_id": record.record_id,
        "cluster": record.cluster,
        "node": record.node,
        "job_id": record.job_id,
        "restart_count": record.restart_count,
        "step": record.step or "",
        "start": record.start,
        "end": record.end,
        "uid": record.uid,
        "user": record.user,
        "account": None,  # this value comes later from Slurm's accounting
        "partition": record.partition,
        "policy": record.policy,
        "energy_joules": item.energy_joules,
        "received": received,
        "body": item.body,
    }
