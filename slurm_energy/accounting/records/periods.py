"""Storage of the periods that nodes deliver. A period is the energy of a node in a time span.

Each period is stored only once. If a period is delivered again, it is accepted and ignored. It counts as
delivered again if the database has a period with the same id, or a period of the same cluster and node with
the same start under another id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select, tuple_

from slurm_energy.accounting.engine import error_reason, savepoint, transaction, value_errors
from slurm_energy.accounting.records.plausibility import ClockAheadError, PlausibilityCheck
from slurm_energy.accounting.records.record_store import MAX_ITEMS, Refusal, RefusalOutcome
from slurm_energy.accounting.schema.tables import node_periods, periods
from slurm_energy.errors import UsageError
from slurm_energy.node_period import NodePeriod, grouped
from slurm_energy.records import NewerSchemaError

JOB, IDLE, UNATTRIBUTED = "job", "idle", "unattributed"
"""Values of the column `kind`."""
MAX_EXTRA_BYTES: Final = 1 << 18
_CHUNK: Final = 200
"""Maximum number of keys in a condition."""


@dataclass(frozen=True, slots=True)
class DeliveredPeriod:
    """A valid delivered period with its position in the request.

    Attributes:
        index: position in the request.
        period: the period.
        extra: JSON text with the keys of the period that this release does not know.
    """

    index: int
    period: NodePeriod
    extra: str

    @property
    def item_id(self) -> str:
        """Unique id of the period, which is the energy of a node in a time interval."""
        return self.period.period_id


def read_periods(
    data: Any, check: PlausibilityCheck | None = None, now: float | None = None
) -> tuple[list[DeliveredPeriod], list[Refusal]]:
    """Validate the `items` of a delivery of periods. An invalid period does not affect the others.

    Args:
        data: value of `items` in the request.
        check: plausibility bounds; None means the defaults.
        now: Unix seconds; None means the current time.

    Returns:
        The valid periods, which the caller should store, and a refusal for each invalid period.

    Raises:
        UsageError: `data` is not a list, or has more than `MAX_ITEMS` elements.
    """
    if not isinstance(data, list):
        raise UsageError("delivery: 'items' is not a list")
    if len(data) > MAX_ITEMS:
        raise UsageError(f"delivery: more than {MAX_ITEMS} items", todo="send fewer at a time")
    check, now = check or PlausibilityCheck(), time.time() if now is None else now
    items: list[DeliveredPeriod] = []
    refusals: list[Refusal] = []
    for index, entry in enumerate(data):
        raw = entry.get("period") if isinstance(entry, dict) else None
        try:
            period = NodePeriod.from_json(raw)
            check.check_period(period, now)
            items.append(DeliveredPeriod(index, period, _extra_text(period)))
        except (NewerSchemaError, ClockAheadError) as error:
            refusals.append(Refusal(index, _id_of(raw), str(error), RefusalOutcome.RETRY))
        except RecursionError:
            refusals.append(Refusal(index, _id_of(raw), "energy period: nested too deeply"))
        except UsageError as error:
            refusals.append(Refusal(index, _id_of(raw), str(error)))
    return items, refusals


def store_periods(
    connection: Connection, items: Sequence[DeliveredPeriod], received: float
) -> tuple[list[str], list[Refusal]]:
    """Store periods in one transaction. Skip periods that the database rejects.

    Args:
        connection: connection of the writing thread.
        items: periods from `read_periods`.
        received: current time, Unix seconds.

    Returns:
        The ids of all given periods that are in the database now, including periods that were stored before,
        and the periods that the database rejected.
    """
    with transaction(connection):
        refusals = _insert(connection, items, received)
    refused = {refusal.index for refusal in refusals}
    return [item.period.period_id for item in items if item.index not in refused], refusals


def _insert(connection: Connection, items: Sequence[DeliveredPeriod], received: float) -> list[Refusal]:
    """Insert all periods into the database, and return the refusals.

    The periods are first inserted together. If the database rejects a value, they are inserted one by one,
    so that only bad periods are refused.
    """
    try:
        with savepoint(connection, "items"):
            _insert_rows(connection, _missing(connection, items), received)
    except value_errors(connection) as error:
        if len(items) == 1:
            reason = f"energy period: not stored: {error_reason(error)}"
            return [Refusal(items[0].index, items[0].period.period_id, reason)]
        return [refusal for item in items for refusal in _insert(connection, [item], received)]
    return []


def _missing(connection: Connection, items: Sequence[DeliveredPeriod]) -> list[DeliveredPeriod]:
    """Return the delivered energy periods of nodes that are not in the database yet.

    The result contains no duplicates.
    """
    ids = _existing_ids(connection, [item.period.period_id for item in items])
    keys = _existing_keys(connection, [item.period for item in items])
    missing = []
    for item in items:
        key = _key(item.period)
        if item.period.period_id not in ids and key not in keys:
            missing.append(item)
            ids.add(item.period.period_id)
            keys.add(key)
    return missing


def _existing_ids(connection: Connection, ids: Sequence[str]) -> set[str]:
    existing: set[str] = set()
    for first in range(0, len(ids), _CHUNK):
        condition = node_periods.c.period_id.in_(ids[first : first + _CHUNK])
        existing.update(connection.execute(select(node_periods.c.period_id).where(condition)).scalars())
    return existing


def _existing_keys(connection: Connection, wanted: Iterable[NodePeriod]) -> set[tuple[str, str, int]]:
    columns = (node_periods.c.cluster, node_periods.c.node, node_periods.c.start)
    keys = sorted(set(map(_key, wanted)))
    existing: set[tuple[str, str, int]] = set()
    for first in range(0, len(keys), _CHUNK):
        query = select(*columns).where(tuple_(*columns).in_(keys[first : first + _CHUNK]))
        existing.update((cluster, node, int(start)) for cluster, node, start in connection.execute(query))
    return existing


def _key(period: NodePeriod) -> tuple[str, str, int]:
    return period.cluster, period.node, period.start


def _insert_rows(connection: Connection, items: Sequence[DeliveredPeriod], received: float) -> None:
    if items:
        heads = [_head(item, received) for item in items]
        connection.execute(node_periods.insert(), heads)
        connection.execute(periods.insert(), [row for item in items for row in energy_rows(item.period)])


def _head(item: DeliveredPeriod, received: float) -> dict[str, Any]:
    period = item.period
    return {
        "period_id": period.period_id,
        "cluster": period.cluster,
        "node": period.node,
        "start": period.start,
        "end": period.end,
        "late_seconds": period.late_seconds,
        "uncertain_seconds": period.uncertain_seconds,
        "received": received,
        "extra": item.extra,
    }


def energy_rows(period: NodePeriod) -> list[dict[str, Any]]:
    """Return the rows that store a period of a node's energy in the table `periods`.

    There is one row for each job, one for idle energy and one for unattributed energy.
    """
    common = {"cluster": period.cluster, "node": period.node, "start": period.start, "end": period.end}
    rows = [
        _energy_row(common, JOB, job.energy_uj, job.job_id, job.restart_count, job.uid) for job in period.jobs
    ]
    idle = {name: energy.idle_uj for name, energy in period.components.items()}
    rest = {name: energy.unattributed_uj for name, energy in period.components.items()}
    return [*rows, _energy_row(common, IDLE, idle), _energy_row(common, UNATTRIBUTED, rest)]


def _energy_row(
    common: dict[str, Any],
    kind: str,
    energy_uj: Any,
    job_id: int = 0,
    restart_count: int = 0,
    uid: int | None = None,
) -> dict[str, Any]:
    columns = {f"{name}_uj": energy for name, energy in grouped(energy_uj).items()}
    return {
        **common,
        "kind": kind,
        "job_id": job_id,
        "restart_count": restart_count,
        "uid": uid,
        **columns,
    }


def _extra_text(period: NodePeriod) -> str:
    try:
        text = json.dumps(dict(period.extra), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError("energy period: text that is not Unicode") from None
    except ValueError as error:
        raise UsageError("energy period: cannot be stored as JSON", str(error)[:120]) from None
    if size > MAX_EXTRA_BYTES:
        raise UsageError("energy period: too long", f"{size} bytes of unknown keys")
    return text


def _id_of(raw: Any) -> str | None:
    period_id = raw.get("period_id") if isinstance(raw, dict) else None
    return period_id[:256] if isinstance(period_id, str) else None
