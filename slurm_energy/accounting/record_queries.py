"""Queries of the database: records as JSON with job facts and traces, and statistics for `senergy status`.

SQLite converts rows to JSON. A large response therefore takes little time in Python and is never in memory as
a whole.
"""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from slurm_energy.accounting.record_selection import JobSelector, RecordSelection, Visibility
from slurm_energy.errors import ForbiddenError, NotFoundError
from slurm_energy.quantities import shown

CHUNK: Final = 500  # records read at a time

_JOB_JSON = """CASE WHEN j.id IS NULL THEN 'null' ELSE json_object(
    'display_id', j.display_id, 'name', j.name, 'account', j.account, 'partition', j.partition,
    'user', j.user, 'state', j.state, 'submit', j.submit, 'start', j.start, 'end', j."end",
    'elapsed_s', j.elapsed_s,
    'nodes', j.nodes, 'array_job_id', j.array_job_id, 'array_task_id', j.array_task_id,
    'het_job_id', j.het_job_id, 'het_offset', j.het_offset, 'requested', j.requested) END"""
# The stored body is a non-empty JSON object; further keys replace its closing brace.
_RECORD_JSON = f"substr(r.body, 1, length(r.body) - 1) || ',\"job\":' || {_JOB_JSON}"

_RECORDED: Final = {
    "account": "SELECT value FROM json_each(?) WHERE EXISTS (SELECT 1 FROM records WHERE account = value)",
    "partition": "SELECT DISTINCT partition FROM jobs WHERE partition IN (SELECT value FROM json_each(?))",
}

# Steps from uid to uid through the index instead of reading all records.
_NAMES = """WITH RECURSIVE uids (uid) AS (
    SELECT min(uid) FROM records
    UNION ALL SELECT (SELECT min(uid) FROM records WHERE uid > uids.uid) FROM uids WHERE uids.uid IS NOT NULL)
    SELECT (SELECT user FROM records r WHERE r.uid = uids.uid ORDER BY "end" LIMIT 1),
        (SELECT user FROM records r WHERE r.uid = uids.uid ORDER BY "end" DESC LIMIT 1) FROM uids"""


def find_records(connection: Connection, selection: RecordSelection) -> array[int]:
    """Return row ids of the selected records, ordered by job id, start, node and step."""
    condition, values = selection.condition()
    # The plus sign keeps SQLite from scanning the whole index of job ids to get the order.
    rows = connection.exec_driver_sql(
        f"SELECT r.id FROM records r WHERE {condition} ORDER BY +r.job_id, r.start, r.node, r.step",
        tuple(values),
    )
    return array("q", (row[0] for row in rows))


def records_json(connection: Connection, ids: Sequence[int], *, with_traces: bool = False) -> list[str]:
    """Return records as JSON objects with the key `job` (job facts or null).

    Args:
        connection: connection to the database.
        ids: row ids, at most `CHUNK`; deleted records are left out.
        with_traces: also add the key `trace` (power trace or null).
    """
    trace = "|| ',\"trace\":' || coalesce(t.body, 'null')" if with_traces else ""
    join = "LEFT JOIN traces t ON t.record = r.id" if with_traces else ""
    rows = connection.exec_driver_sql(
        f"SELECT r.id, {_RECORD_JSON} {trace} || '}}' AS text FROM records r"
        f" LEFT JOIN jobs j ON j.id = r.job {join} WHERE r.id IN ({','.join('?' * len(ids))})",
        tuple(ids),
    )
    texts = {row.id: row.text for row in rows}
    return [texts[row_id] for row_id in ids if row_id in texts]


def refuse_jobs_of_others(connection: Connection, selection: RecordSelection) -> None:
    """Raise an error if a selected job has records, but the caller may see none of them.

    Raises:
        ForbiddenError: names the first such job.
    """
    if selection.visible is None:
        return
    for job in selection.jobs:
        if not _exists(connection, job, selection.visible) and _exists(connection, job, None):
            raise ForbiddenError(
                f"job {job.text}", "it belongs to another user", "ask an operator, or for a job of your own"
            )


def refuse_unknown_users(connection: Connection, selection: RecordSelection) -> None:
    """Raise an error if one of the selected user names occurs in no record.

    The first and the last record of each uid are searched first, then the records of the selection.

    Raises:
        NotFoundError: names the first such user name.
    """
    recorded = {name for pair in connection.exec_driver_sql(_NAMES) for name in pair}
    for name in selection.users:
        if name not in recorded and not find_records(
            connection, dataclasses.replace(selection, users=(name,), uids=())
        ):
            why = "the controller does not know this user, and no energy record has the name"
            raise NotFoundError(f"user {shown(name)}", why, "is it spelt right?")


def recorded_names(connection: Connection, kind: str, names: Collection[str]) -> frozenset[str]:
    """Return the members of `names` that occur in the database.

    One query looks up any number of names. Accounts are looked up in an index. Partitions have no index and
    need one scan of the jobs table, whose rows are short.

    Args:
        connection: connection to the database.
        kind: `account` or `partition`.
        names: names of Slurm accounts or of partitions, according to `kind`.
    """
    return frozenset(row[0] for row in connection.exec_driver_sql(_RECORDED[kind], (json.dumps([*names]),)))


def _exists(connection: Connection, job: JobSelector, visible: Visibility | None) -> bool:
    selection = RecordSelection(
        jobs=(dataclasses.replace(job, step=None),), steps=True, duplicates=True, visible=visible
    )
    condition, values = selection.condition()
    return bool(
        connection.exec_driver_sql(
            f"SELECT 1 FROM records r WHERE {condition} LIMIT 1", tuple(values)
        ).first()
    )


def database_figures(connection: Connection) -> dict[str, Any]:
    """Return database statistics for `senergy status`: counts, file size, and each node's last record."""
    (records,) = connection.exec_driver_sql("SELECT count(*) FROM records").one()
    (traces,) = connection.exec_driver_sql("SELECT count(*) FROM traces").one()
    (without_job,) = connection.exec_driver_sql("SELECT count(*) FROM records WHERE job IS NULL").one()
    (database_bytes,) = connection.exec_driver_sql(
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    ).one()
    nodes = connection.exec_driver_sql(
        "SELECT cluster, node, last_end, last_received FROM nodes ORDER BY cluster, node"
    )
    keys = ("cluster", "node", "last_record_end", "last_received")
    return {
        "records": records,
        "records_without_job": without_job,
        "traces": traces,
        "database_bytes": database_bytes,
        "nodes": [dict(zip(keys, row, strict=True)) for row in nodes],
    }
