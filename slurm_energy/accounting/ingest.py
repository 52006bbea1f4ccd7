"""Records from nodes into the database, each exactly once.

A record counts as stored when the transaction that holds it is committed; only then is its id returned.
Delivered again under the same id, or under another id with the same cluster, node, job, restart count, step
and start (a spool that was made anew), it is accepted without effect. What is not stored is named with an
outcome: rejected for good, or to be retried later.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from slurm_energy.accounting import traces
from slurm_energy.accounting.database import transaction
from slurm_energy.accounting.plausibility import ClockAheadError, PlausibilityCheck
from slurm_energy.errors import UsageError
from slurm_energy.records import EnergyRecord, NewerSchemaError

MAX_ITEMS: Final = 10_000
MAX_RECORD_BYTES: Final = 1 << 20
MAX_TRACE_VALUES: Final = 16_000_000
MAX_DELIVERY_VALUES: Final = 64_000_000
"""Values of all traces of one delivery: unpacking them takes about a second."""
_RESERVED_KEYS: Final = ("job", "trace")
"""Keys that answers add to a record."""
_LARGEST_INTEGER: Final = 2**63 - 1  # of SQLite

_VALUE_ERRORS: Final = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    ValueError,
)
"""Errors about a value; others, such as a full disk, are about the database."""

_INSERT_RECORD = """
    INSERT INTO records (record_id, cluster, node, job_id, restart_count, step, start, "end", uid, user,
        account, partition, policy, energy_joules, received, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_INSERT_TRACE = """
    INSERT INTO traces (record, "end", body) SELECT id, ?, ? FROM records WHERE record_id = ?
    ON CONFLICT DO NOTHING
"""
_NOTE_NODE = """
    INSERT INTO nodes VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET
        last_end = max(last_end, excluded.last_end), last_received = excluded.last_received
"""


@dataclass(frozen=True, slots=True)
class DeliveredRecord:
    """A record fit to be stored, its own JSON text, and its trace if there is one.

    `index` is its place in the request. `body` keeps the record as delivered: what the table has no columns
    for, and keys of a newer release.
    """

    index: int
    record: EnergyRecord
    body: str
    energy_joules: float | None = None
    trace: str | None = None
    trace_end: float | None = None


class RefusalOutcome(StrEnum):
    """What becomes of an item that is not stored as it came.

    Attributes:
        REJECTED: it can never be stored as it is.
        RETRY: this release, or the time, does not allow it yet.
        TRACE_REJECTED: its record is stored, its trace can never be.
    """

    REJECTED = "rejected"
    RETRY = "retry"
    TRACE_REJECTED = "traces_rejected"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An item that is not stored as it came.

    Attributes:
        index: place in the request.
        record_id: its id, if it could be read.
        error: one line.
        outcome: what becomes of it.
    """

    index: int
    record_id: str | None
    error: str
    outcome: RefusalOutcome = RefusalOutcome.REJECTED


def read_items(
    data: Any, check: PlausibilityCheck | None = None, now: float | None = None
) -> tuple[list[DeliveredRecord], list[Refusal]]:
    """Check the `items` of a delivery.

    One bad item does not hold up the others. A record with a bad trace is kept without it.

    Args:
        data: as it came.
        check: bounds of the figures; None for the default ones.
        now: Unix seconds; None for the present.

    Raises:
        UsageError: not a list, or too long.
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
        items.append(DeliveredRecord(index, record, body, record.energy_joules, trace, end))
    return items, refusals


def store(
    connection: sqlite3.Connection, items: Sequence[DeliveredRecord], received: float
) -> tuple[list[str], list[Refusal]]:
    """Store items in one transaction; those that the database refuses are left out and named.

    Args:
        connection: of the writing thread.
        items: from `read_items`.
        received: now, in Unix seconds.

    Returns:
        The record ids of what is stored, also of what was known before, and the refusals.
    """
    with transaction(connection):
        refusals = _insert(connection, items, received)
    refused = {refusal.index for refusal in refusals}
    return [item.record.record_id for item in items if item.index not in refused], refusals


def _insert(
    connection: sqlite3.Connection, items: Sequence[DeliveredRecord], received: float
) -> list[Refusal]:
    """Insert all items at once; one by one if the database refuses some value of theirs."""
    try:
        with _savepoint(connection):
            _insert_rows(connection, items, received)
    except _VALUE_ERRORS as error:
        if len(items) == 1:
            item = items[0]
            return [Refusal(item.index, item.record.record_id, f"energy record: not stored: {error}")]
        return [refusal for item in items for refusal in _insert(connection, [item], received)]
    return []


def _insert_rows(connection: sqlite3.Connection, items: Sequence[DeliveredRecord], received: float) -> None:
    newest: dict[tuple[str, str], float] = {}
    for item in items:
        key = (item.record.cluster, item.record.node)
        newest[key] = max(newest.get(key, 0.0), item.record.end)
    connection.executemany(_INSERT_RECORD, [_row(item, received) for item in items])
    connection.executemany(
        _INSERT_TRACE,
        [(i.trace_end, i.trace, i.record.record_id) for i in items if i.trace is not None],
    )
    connection.executemany(_NOTE_NODE, [(*key, end, received) for key, end in newest.items()])


@contextlib.contextmanager
def _savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("SAVEPOINT items")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO items")
        raise
    finally:
        if connection.in_transaction:
            connection.execute("RELEASE items")


def _read_record(raw: Any) -> tuple[EnergyRecord, str]:
    record = EnergyRecord.from_json(raw)
    if record.step == "" or record.record_id == "":
        raise UsageError("energy record: empty step or record_id")
    if max(record.job_id, record.restart_count) > _LARGEST_INTEGER:
        raise UsageError("energy record: a number beyond 63 bits")
    for key in _RESERVED_KEYS:
        if key in raw:
            raise UsageError(f"energy record: key '{key}' is reserved for answers")
    try:
        body = json.dumps(raw, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(body.encode())
    except UnicodeEncodeError:
        raise UsageError("energy record: text that is not Unicode") from None
    except ValueError as error:
        raise UsageError("energy record: cannot be kept as JSON", str(error)[:120]) from None
    if size > MAX_RECORD_BYTES:
        raise UsageError("energy record: too long", f"{size} bytes, more than {MAX_RECORD_BYTES}")
    return record, body


def _read_trace(raw: Any, record: EnergyRecord) -> tuple[str | None, float | None, int]:
    """Return a trace's text, its end and the number of its values."""
    if raw is None:
        return None, None, 0
    extent = traces.check_trace(raw, record.elapsed_s, MAX_TRACE_VALUES)
    try:
        body = json.dumps(raw, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise UsageError("power trace: cannot be kept as JSON", str(error)[:120]) from None
    return body, extent.end, extent.values


def _id_of(raw: Any) -> str | None:
    record_id = raw.get("record_id") if isinstance(raw, dict) else None
    return record_id[:256] if isinstance(record_id, str) else None


def _row(item: DeliveredRecord, received: float) -> tuple[Any, ...]:
    record = item.record
    return (
        record.record_id,
        record.cluster,
        record.node,
        record.job_id,
        record.restart_count,
        record.step or "",
        record.start,
        record.end,
        record.uid,
        record.user,
        None,  # the account: Slurm's accounting knows it
        record.partition,
        record.policy,
        item.energy_joules,
        received,
        item.body,
    )
