"""Energy and GPUs that users and Slurm accounts have consumed, read from the energy records.

One entry describes the consumption of one run of a job on one node. Entries are read in the order in which
the records arrived. The priority engine computes usage from these entries. The decay of usage and the
fair-share comparison are in `priority/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Select, func, select

from slurm_energy.accounting.json_fields import array_length
from slurm_energy.accounting.schema.tables import records as _records

CHUNK: Final = 20_000
MAX_IDS: Final = 500


class ConsumptionRecord(NamedTuple):
    """The consumption of one run of a job on one node.

    Attributes:
        row: row id in the database; later records have higher ids.
        user: login name; the uid as text if the name is unknown.
        account: Slurm account of the job; an empty value means unknown.
        start, end: Unix seconds.
        energy_joules: energy; None means unknown.
        gpus: number of GPUs.
        job_id: Slurm's job id.
        restart_count: number of requeues before this run.
        settled: whether Slurm has confirmed user and account. If not, both may still change.
    """

    row: int
    user: str
    account: str
    start: float
    end: float
    energy_joules: float | None
    gpus: int
    job_id: int
    restart_count: int
    settled: bool


def read_consumption(connection: Connection, after: int, since: float) -> list[ConsumptionRecord]:
    """Return at most `CHUNK` entries of whole jobs (not of steps), in the order in which they arrived.

    Call the function again with `after` set to the `row` of the last entry until fewer than `CHUNK` entries
    are returned.

    Args:
        connection: connection to the database.
        after: row id; only records with a higher row id are returned. 0 means that all records are returned.
        since: Unix seconds; only records that end at this time or later are returned.
    """
    query = _query(connection).where(_records.c.id > after, _records.c.step == "", _records.c.end >= since)
    return [_consumed(row) for row in connection.execute(query.order_by(_records.c.id).limit(CHUNK))]


def reread_consumption(connection: Connection, rows: Sequence[int]) -> list[ConsumptionRecord]:
    """Read the energy and GPU use of given records again, as `read_consumption` does for new records.

    Deleted records are omitted.

    Args:
        connection: connection to the database.
        rows: row ids of records, at most `MAX_IDS`.
    """
    query = _query(connection).where(_records.c.id.in_(rows)).order_by(_records.c.id)
    return [_consumed(row) for row in connection.execute(query)]


def _query(connection: Connection) -> Select[Any]:
    columns = _records.c
    gpus = func.coalesce(array_length(connection, columns.body, "gpus"), 0)
    return select(
        *columns["id", "user", "uid", "account", "start", "end", "energy_joules"],
        *(gpus, columns.job_id, columns.restart_count, columns.job),
    )


def _consumed(row: Sequence[Any]) -> ConsumptionRecord:
    number, user, uid, account, *values, job = row
    owner = str(uid) if user is None else user
    return ConsumptionRecord(*(number, owner, account or "", *values, job is not None))
