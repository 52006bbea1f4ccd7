"""SQL statements with which PostgreSQL generates the rows of large test tables itself.

The module `record_rows` generates the same rows in Python. Generation in the database is faster than sending
the rows.
"""

from __future__ import annotations

import json
from typing import Any

from record_rows import (
    ACCOUNTS,
    FIRST_UID,
    ID_FACTOR,
    JOB_NODES,
    JOB_WATTS,
    JOBS_PER_DAY,
    NODES,
    STEPS,
    USER_FACTOR,
    USERS,
    RecordRows,
)
from sqlalchemy import Connection

DAY_S = 86400.0
_CHECKED_JOBS = 50
# Expressions of the marks of a body, in the order of `record_rows._MARKS`.
_MARK_VALUES = ("node", "job", "uid", "start", '"end"', "joules", "record_id")
# The lower 64 bits of job * ID_FACTOR. bigint has no unsigned product, so the halves are multiplied apart.
_HIGH, _LOW = divmod(ID_FACTOR, 2**32)
_ID = f"((job * {_HIGH} + (job * {_LOW} >> 32)) & 4294967295) << 32 | (job * {_LOW} & 4294967295)"


def jobs_query(rows: RecordRows, first: int, last: int) -> str:
    """Return an SQL query that generates the rows that `RecordRows.jobs` generates in Python."""
    return (
        f"SELECT job, 'cluster', job, start - 60.0, job::text, 'job', {_account()}, 'batch', 'user' || uid,"
        f' \'COMPLETED\', start, "end", "end" - start, {JOB_NODES}::bigint, true, "end" + 20.0,'
        " 86400.0::float8, 'cpu=256,node=4', true, true, 'normal', 'cpu=256,node=4'"
        f" FROM ({_times(rows, first, last)}) times"
    )


def records_query(rows: RecordRows, first: int, last: int) -> str:
    """Return an SQL query that generates the same rows as `RecordRows.records`."""
    bodies = " ".join(f"WHEN {_text(step)} THEN {_body(parts)}" for step, parts in rows.body_parts.items())
    steps = ", ".join(f"({number}, {_text(step)})" for number, step in enumerate(STEPS))
    values = (
        f'job, start, "end", uid, {_account()} AS account, step,'
        f' {JOB_WATTS}::float8 * ("end" - start) AS joules,'
        f" 'node' || lpad(((job * {JOB_NODES} + place) % {NODES})::text, 5, '0') AS node,"
        " head || lpad(to_hex(place), 8, '0') || lpad(to_hex(number), 8, '0') AS record_id"
    )
    return (
        "SELECT record_id, 'cluster', node, job, 0::bigint, step, start, \"end\", uid, 'user' || uid,"
        f" account, 'batch', 'monitor', joules, \"end\" + 1.0, job, CASE step {bodies} END"
        f" FROM (SELECT {values} FROM ({_times(rows, first, last)}) times,"
        f" generate_series(0, {JOB_NODES - 1}) place, (VALUES {steps}) steps (number, step)) places"
    )


def refuse_other_rows(connection: Connection, rows: RecordRows, last: int) -> None:
    """Check that the SQL queries generate the same rows as `RecordRows` for the last jobs.

    The program ends with an error if the rows differ.
    """
    first = max(0, last - _CHECKED_JOBS)
    for query, expected in (
        (jobs_query(rows, first, last), rows.jobs(first, last)),
        (records_query(rows, first, last), rows.records(first, last)),
    ):
        generated = {
            row[0]: _parsed(tuple(row)) for row in connection.exec_driver_sql(query.replace("%", "%%"))
        }
        if generated != {row[0]: _parsed(row) for row in expected}:
            raise SystemExit(
                "record_statements.py: the rows of the server differ from those of record_rows.py"
            )


def _parsed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row of the database with its JSON text parsed, so that rows can be compared.

    The texts cannot be compared directly, because PostgreSQL writes the number 1.0 as 1.
    """
    body = row[-1]
    return (*row[:-1], json.loads(body)) if body.startswith("{") else row


def _times(rows: RecordRows, first: int, last: int) -> str:
    """Return an SQL query that generates synthetic jobs for a benchmark.

    Each row of the result has the number of a job, its start, its end, the uid of its owner, and the
    first part of the ids of its records.

    Args:
        rows: parameters of the generated rows.
        first: number of the first job.
        last: number after the last job.
    """
    end = f"{rows.first_end_s!r}::float8 + job * {DAY_S / JOBS_PER_DAY!r}::float8"
    return (
        'SELECT job, "end" - 600.0 - job * 7919 % 13200 AS start, "end",'
        f" {FIRST_UID} + job * {USER_FACTOR} % 4294967296 % {USERS} AS uid,"
        f" lpad(to_hex({_ID}), 16, '0') AS head"
        f' FROM (SELECT job, {end} AS "end" FROM generate_series({first}::bigint, {last - 1}) job) ends'
    )


def _account() -> str:
    return f"'account' || lpad(((uid - {FIRST_UID}) % {ACCOUNTS})::text, 2, '0')"


def _body(parts: list[str]) -> str:
    pieces = (
        f"{_MARK_VALUES[int(part[1:])]}::text" if part.startswith("\0") else _text(part) for part in parts
    )
    return " || ".join(pieces)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
