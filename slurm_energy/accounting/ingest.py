"""Records from nodes into the database, each exactly once.

A record counts as stored when the transaction that holds it is committed; only then is its id returned.
Delivered again under the same id, or under another id with the same cluster, node, job, restart count, step
and start (a spool that was made anew), it is accepted without effect.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.accounting import traces
from slurm_energy.accounting.database import transaction
from slurm_energy.errors import UsageError
from slurm_energy.records import EnergyRecord

MAX_ITEMS: Final = 10_000
_LARGEST_INTEGER: Final = 2**63 - 1  # of SQLite

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
class Item:
    """A record fit to be stored, its own JSON text, and its trace if there is one.

    `body` keeps the record as delivered, so that nothing is lost that the table's columns do not have.
    """

    record: EnergyRecord
    body: str
    energy_joules: float | None = None
    trace: str | None = None
    trace_end: float | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """An item that can never be stored, or whose trace cannot (`kept` then says that its record is).

    Attributes:
        index: place in the request.
        record_id: its id, if it could be read.
        error: one line.
        kept: True if only the trace was dropped.
    """

    index: int
    record_id: str | None
    error: str
    kept: bool = False


def read_items(data: Any) -> tuple[list[Item], list[Rejection]]:
    """Check the `items` of a delivery.

    One bad item does not hold up the others. A record with a bad trace is kept without it.

    Raises:
        UsageError: not a list, or too long.
    """
    if not isinstance(data, list):
        raise UsageError("delivery: 'items' is not a list")
    if len(data) > MAX_ITEMS:
        raise UsageError(f"delivery: more than {MAX_ITEMS} items", todo="send fewer at a time")
    items, rejections = [], []
    for index, entry in enumerate(data):
        raw = entry.get("record") if isinstance(entry, dict) else None
        try:
            record, body, joules = _read_record(raw)
        except RecursionError:
            rejections.append(Rejection(index, _id_of(raw), "energy record: nested too deeply"))
            continue
        except UsageError as error:
            rejections.append(Rejection(index, _id_of(raw), str(error)))
            continue
        trace: str | None = None
        end: float | None = None
        try:
            trace, end = _read_trace(entry.get("trace"))
        except UsageError as error:
            rejections.append(Rejection(index, record.record_id, str(error), kept=True))
        items.append(Item(record, body, joules, trace, end))
    return items, rejections


def store(connection: sqlite3.Connection, items: Sequence[Item], received: float) -> list[str]:
    """Store items in one transaction and return their record ids, also of those known before.

    Args:
        connection: of the writing thread.
        items: from `read_items`.
        received: now, in Unix seconds.
    """
    newest: dict[tuple[str, str], float] = {}
    for item in items:
        key = (item.record.cluster, item.record.node)
        newest[key] = max(newest.get(key, 0.0), item.record.end)
    with transaction(connection):
        connection.executemany(_INSERT_RECORD, [_row(item, received) for item in items])
        connection.executemany(
            _INSERT_TRACE,
            [(i.trace_end, i.trace, i.record.record_id) for i in items if i.trace is not None],
        )
        connection.executemany(_NOTE_NODE, [(*key, end, received) for key, end in newest.items()])
    return [item.record.record_id for item in items]


def _read_record(raw: Any) -> tuple[EnergyRecord, str, float | None]:
    record = EnergyRecord.from_json(raw)
    if record.step == "" or record.record_id == "":
        raise UsageError("energy record: empty step or record_id")
    if max(record.job_id, record.uid, record.restart_count) > _LARGEST_INTEGER:
        raise UsageError("energy record: a number beyond 63 bits")
    body = json.dumps(raw, separators=(",", ":"), ensure_ascii=False)
    try:
        body.encode()
        return record, body, record.energy_joules
    except UnicodeEncodeError:
        raise UsageError("energy record: text that is not Unicode") from None
    except OverflowError:
        raise UsageError("energy record: energy beyond any number") from None


def _read_trace(raw: Any) -> tuple[str | None, float | None]:
    if raw is None:
        return None, None
    end = traces.end_of(raw)
    body = json.dumps(raw, separators=(",", ":"))
    return body, end


def _id_of(raw: Any) -> str | None:
    record_id = raw.get("record_id") if isinstance(raw, dict) else None
    return record_id[:256] if isinstance(record_id, str) else None


def _row(item: Item, received: float) -> tuple[Any, ...]:
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
        record.account,
        record.partition,
        record.policy,
        item.energy_joules,
        received,
        item.body,
    )
