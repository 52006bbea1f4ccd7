"""Database queries that read energy records, and queries for statistics about the database.

The records are returned as JSON, with the job data from Slurm and with power traces.
"""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Table, func, literal, select, union_all
from sqlalchemy.sql.selectable import CompoundSelect, Select

from slurm_energy.accounting.backends import backend_of
from slurm_energy.accounting.records.record_conditions import r, selected
from slurm_energy.accounting.records.record_selection import JobSelector, RecordSelection, Visibility
from slurm_energy.accounting.schema.tables import jobs, nodes, records, traces
from slurm_energy.errors import ForbiddenError, NotFoundError
from slurm_energy.quantities import shown

CHUNK: Final = 500  # records read at a time
MAX_COUNTED_ROWS: Final = 1_000_000
"""Maximum number of rows of a table that `database_figures` counts exactly."""

_FACTS: Final = (
    *("display_id", "name", "account", "partition", "user", "state", "submit", "start", "end", "elapsed_s"),
    *("nodes", "array_job_id", "array_task_id", "het_job_id", "het_offset", "requested"),
    *("exit_code", "step_exit_code"),
)
"""Columns of the table `jobs` that appear under the key `job` of a record."""
_NAMES_AT_ONCE: Final = 100


def find_records(connection: Connection, selection: RecordSelection) -> array[int]:
    """Return the row ids of the selected records, ordered by job id, start, node, step and other keys."""
    # The addition prevents SQLite from scanning the whole index of job ids to obtain the order.
    order = (r.c.job_id + 0, r.c.start, r.c.node, r.c.step, r.c.restart_count, r.c.cluster)
    query = select(r.c.id).where(selected(selection)).order_by(*order)
    return array("q", connection.execute(query).scalars())


def records_json(connection: Connection, ids: Sequence[int], *, with_traces: bool = False) -> list[str]:
    """Return records as JSON objects with the key `job` (job facts or null).

    Args:
        connection: connection to the database.
        ids: row ids, at most `CHUNK`; deleted records are left out.
        with_traces: whether to add also the key `trace` (power trace or null).
    """
    facts = [jobs.c[name].label(f"job_{name}") for name in _FACTS]
    source = records.outerjoin(jobs, jobs.c.id == records.c.job)
    columns: list[ColumnElement[Any]] = [records.c.id, records.c.body, jobs.c.id.label("job_row"), *facts]
    if with_traces:
        source = source.outerjoin(traces, traces.c.record == records.c.id)
        columns.append(traces.c.body.label("trace"))
    query = select(*columns).select_from(source).where(records.c.id.in_(ids))
    facts_texts: dict[int | None, str] = {None: "null"}
    texts = {row.id: _record_json(row, facts_texts, with_traces) for row in connection.execute(query)}
    return [texts[row_id] for row_id in ids if row_id in texts]


def _record_json(row: Row[Any], facts_texts: dict[int | None, str], with_traces: bool) -> str:
    """Return an energy record as JSON.

    `facts_texts` holds the texts of the job facts (Slurm's data about the job) by row id.
    """
    values: tuple[Any, ...] = tuple(row)
    facts = facts_texts.get(values[2])
    if facts is None:
        content = dict(zip(_FACTS, values[3:], strict=False))
        facts = facts_texts[values[2]] = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # The stored body is a non-empty JSON object; further keys replace its closing brace.
    text = f'{values[1][:-1]},"job":{facts}'
    return f'{text},"trace":{row.trace or "null"}}}' if with_traces else f"{text}}}"


def refuse_jobs_of_others(connection: Connection, selection: RecordSelection) -> None:
    """Raise an error if a selected job has records, but the caller may see none of them.

    Raises:
        ForbiddenError: the caller may see no record of a selected job. The message names the first such job.
    """
    if selection.visible is None:
        return
    for job in selection.jobs:
        if not _exists(connection, job, selection.visible) and _exists(connection, job, None):
            raise ForbiddenError(
                f"job {job.text}", "it belongs to another user", "ask an operator, or for a job of your own"
            )


def refuse_unknown_users(connection: Connection, selection: RecordSelection) -> None:
    """Raise an error if one of the selected user names occurs in no energy record.

    To save time, the function first compares the names only with the first and the last record of each uid.
    It searches all records only for the remaining names.

    Raises:
        NotFoundError: a user name is unknown. The message contains the first unknown name.
    """
    recorded = _first_and_last_names(connection)
    for name in selection.users:
        if name not in recorded and not find_records(
            connection, dataclasses.replace(selection, users=(name,), uids=())
        ):
            why = "the controller does not know this user, and no energy record has the name"
            raise NotFoundError(f"user {shown(name)}", why, "is it spelt right?")


def recorded_names(connection: Connection, kind: str, names: Collection[str]) -> frozenset[str]:
    """Return the members of `names` that occur in the database.

    Accounts are looked up in an index. Partitions have no index and need scans of the jobs table, whose rows
    are short.

    Args:
        connection: connection to the database.
        kind: `account` or `partition`.
        names: names of Slurm accounts or of partitions, depending on `kind`.
    """
    recorded: set[str] = set()
    ordered = sorted(names)
    for first in range(0, len(ordered), _NAMES_AT_ONCE):
        some = ordered[first : first + _NAMES_AT_ONCE]
        recorded.update(connection.execute(_names_query(kind, some)).scalars())
    return frozenset(recorded)


def _names_query(kind: str, names: Sequence[str]) -> Select[str] | CompoundSelect[str]:
    if kind == "partition":
        return select(jobs.c.partition).where(jobs.c.partition.in_(names)).distinct()
    # One look-up per name: all records of an account would be read otherwise.
    of_name = {name: select(records.c.id).where(records.c.account == name) for name in names}
    return union_all(*(select(literal(name)).where(query.exists()) for name, query in of_name.items()))


def _exists(connection: Connection, job: JobSelector, visible: Visibility | None) -> bool:
    selection = RecordSelection(
        jobs=(dataclasses.replace(job, step=None),), steps=True, duplicates=True, visible=visible
    )
    return connection.execute(select(r.c.id).where(selected(selection)).limit(1)).first() is not None


def _first_and_last_names(connection: Connection) -> set[str | None]:
    """Return user names that certainly occur in the records.

    For speed, only the first and the last record of each uid are read.
    """
    names: set[str | None] = set()
    uid = connection.execute(select(func.min(records.c.uid))).scalar()
    while uid is not None:  # through the index, instead of reading all records
        of_user = select(records.c.user).where(records.c.uid == uid).limit(1)
        names.update(connection.execute(of_user.order_by(records.c.end)).scalars())
        names.update(connection.execute(of_user.order_by(records.c.end.desc())).scalars())
        uid = connection.execute(select(func.min(records.c.uid)).where(records.c.uid > uid)).scalar()
    return names


def database_figures(connection: Connection) -> dict[str, Any]:
    """Return database statistics for `senergy status`: counts, size, and each node's last record.

    On a server, a count of more than `MAX_COUNTED_ROWS` records or traces is the server's estimate.
    """
    without_job = select(func.count()).select_from(records).where(records.c.job.is_(None))
    keys = ("cluster", "node", "last_record_end", "last_received")
    last = select(nodes.c.cluster, nodes.c.node, nodes.c.last_end, nodes.c.last_received)
    rows = connection.execute(last.order_by(nodes.c.cluster, nodes.c.node))
    return {
        "records": _count(connection, records),
        "records_without_job": connection.execute(without_job).scalar_one(),
        "traces": _count(connection, traces),
        "database_bytes": backend_of(connection).size_bytes(connection),
        "nodes": [dict(zip(keys, row, strict=True)) for row in rows],
    }


def _count(connection: Connection, table: Table) -> int:
    """Return the number of rows of a table.

    For a large table on a server the result is an estimate, because counting would read all rows.
    """
    estimate = backend_of(connection).estimated_rows(connection, table.name)
    if estimate is not None and estimate > MAX_COUNTED_ROWS:
        return estimate
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())
