"""Generated database rows of a large cluster, for benchmarks of senergyctld.

The rows contain records and energy sums in the form in which senergyctld stores them. In the assumed cluster
of 10,000 nodes, 30,000 jobs end each day. A job runs for 2 h on average on 4 nodes. Each node has one record
of the job and one record of each of two steps, so that 360,000 records arrive a day. There are 1,000 users
in 50 accounts. The number of records per day is always the same. A database with fewer records therefore
covers less time.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Table

from slurm_energy.accounting.schema import tables, usage_tables
from slurm_energy.accounting.usage.groups import GroupKey
from slurm_energy.accounting.usage.sum_changes import DAY_S, HOUR_S, SUM_COLUMNS
from slurm_energy_lab.simulated_nodes import SimulatedNode, SimulatedWorkload

JOBS_PER_DAY = 30_000
JOB_NODES, STEPS = 4, ("", "batch", "0")
RECORDS_PER_JOB = JOB_NODES * len(STEPS)
NODES, USERS, ACCOUNTS, FIRST_UID = 10_000, 1000, 50, 20_000
GROUPS_PER_USER = 5
JOB_WATTS = 460.0
ID_FACTOR, USER_FACTOR = 0x9E3779B97F4A7C15, 2_654_435_761  # scatter record ids and users
CHUNK = 20_000
Row = tuple[Any, ...]


class RecordRows:
    """Generator of rows of the database tables `records` and `jobs`, for benchmarks.

    Args:
        end: Unix time at which the last job ends.
        total_jobs: number of jobs in the whole database.
    """

    def __init__(self, end: float, total_jobs: int) -> None:
        self._interval_s = 86400.0 / JOBS_PER_DAY
        self.first_end_s = end - total_jobs * self._interval_s
        self.body_parts = {step: _body_parts(step) for step in STEPS}

    def job_times(self, job: int) -> tuple[float, float]:
        """Return the start and the end of a synthetic job in Unix seconds, computed from its number."""
        end = self.first_end_s + job * self._interval_s
        return end - 600.0 - job * 7919 % 13_200, end

    def jobs(self, first: int, last: int) -> Iterator[Row]:
        """Yield the rows that store Slurm's facts about jobs in a test database.

        The jobs have the numbers from `first` up to, not including, `last`. The columns of a row are
        `JOB_COLUMNS`.
        """
        for job in range(first, last):
            start, end = self.job_times(job)
            user = user_of(job)
            yield (
                *(job, "cluster", job, start - 60.0, str(job), "job", f"account{user % ACCOUNTS:02}"),
                *("batch", f"user{FIRST_UID + user}", "COMPLETED", start, end, end - start, JOB_NODES, True),
                *(end + 20.0, 86400.0, "cpu=256,node=4", True, True, "normal", "cpu=256,node=4"),
            )

    def records(self, first: int, last: int) -> Iterator[Row]:
        """Yield generated rows of the table of energy records, for the jobs from `first` to `last` - 1.

        The columns are `RECORD_COLUMNS`.
        """
        for job in range(first, last):
            start, end = self.job_times(job)
            user = user_of(job)
            uid, joules = FIRST_UID + user, JOB_WATTS * (end - start)
            for place, step in itertools.product(range(JOB_NODES), STEPS):
                node = f"node{(job * JOB_NODES + place) % NODES:05d}"
                record_id = f"{job * ID_FACTOR % 2**64:016x}{place:08x}{STEPS.index(step):08x}"
                values = (node, job, uid, start, end, joules, record_id)
                yield (
                    *(record_id, "cluster", node, job, 0, step, start, end, uid, f"user{uid}"),
                    *(f"account{user % ACCOUNTS:02}", "batch", "monitor", joules, end + 1.0, job),
                    _body(self.body_parts[step], values),
                )


JOB_COLUMNS = (
    *("id", "cluster", "job_id", "submit", "display_id", "name", "account", "partition", "user", "state"),
    *("start", "end", "elapsed_s", "nodes", "finished", "updated", "time_limit_s", "requested", "learned"),
    *("tuning_learned", "qos", "allocated"),
)
RECORD_COLUMNS = (
    *("record_id", "cluster", "node", "job_id", "restart_count", "step", "start", "end", "uid", "user"),
    *("account", "partition", "policy", "energy_joules", "received", "job", "body"),
)


def user_of(job: int) -> int:
    """Return the number of the user who owns a job."""
    return job * USER_FACTOR % 2**32 % USERS


def copy_rows(connection: Connection, table: Table, columns: Sequence[str], rows: Iterator[Row]) -> None:
    """Insert many rows into a table by the fastest way that the kind of database offers."""
    names = ", ".join(f'"{name}"' for name in columns)
    raw: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "postgresql":
        with raw.cursor() as cursor, cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        return
    marks = ", ".join("?" * len(columns))
    raw.execute("BEGIN")
    raw.executemany(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", rows)
    raw.execute("COMMIT")


def fill(connection: Connection, rows: RecordRows, jobs: int) -> None:
    """Store the generated rows of the first `jobs` jobs and of their records in the database."""
    for begin in range(0, jobs, CHUNK):
        end = min(begin + CHUNK, jobs)
        copy_rows(connection, tables.jobs, JOB_COLUMNS, rows.jobs(begin, end))
        copy_rows(connection, tables.records, RECORD_COLUMNS, rows.records(begin, end))


def fill_sums(connection: Connection, end: int, days: int = 30) -> None:
    """Store a month of energy sums, as `senergy report` reads them.

    The sums are stored by usage group. A group is a combination of attributes by which reports sum up, such
    as user, account and tag. Each user has five groups. In each hour, a fifth of the groups uses energy.
    """
    groups: list[dict[str, Any]] = []
    for user, number in itertools.product(range(USERS), range(GROUPS_PER_USER)):
        name, uid = f"user{FIRST_UID + user}", FIRST_UID + user
        account = f"account{user % ACCOUNTS:02}"
        key = GroupKey("cluster", "job", account, name, uid, "normal", "batch", "monitor", f"tag{number}")
        groups.append({"id": len(groups) + 1, "digest": key.digest, **key._asdict()})
    connection.execute(usage_tables.usage_groups.insert(), groups)
    last_day = end - end % DAY_S
    values = dict.fromkeys(SUM_COLUMNS, 0) | {"cpu_rows": 1, "other_rows": 1}
    for day in range(last_day - days * DAY_S, last_day, DAY_S):
        for begin in range(day, day + DAY_S, HOUR_S):
            part = [group for group in groups if _uses_energy(group, begin)]
            _insert_sums(connection, usage_tables.usage_sums, begin, begin + HOUR_S, part, values)
        _insert_sums(connection, usage_tables.usage_days, day, day + DAY_S, groups, values)
        _insert_hours(connection, day, groups)


def _uses_energy(group: dict[str, Any], hour: int) -> bool:
    return bool((group["id"] + hour // HOUR_S) % GROUPS_PER_USER == 0)


def _insert_hours(connection: Connection, day: int, groups: list[Any]) -> None:
    hours = range(day, day + DAY_S, HOUR_S)
    energy = 460_000_000 * HOUR_S
    rows = (
        (day, group["id"], *(energy if _uses_energy(group, hour) else 0 for hour in hours))
        for group in groups
    )
    columns = ("start", "usage_group", *usage_tables.HOUR_COLUMNS)
    copy_rows(connection, usage_tables.usage_day_hours, columns, rows)


def _insert_sums(
    connection: Connection, table: Table, start: int, end: int, groups: list[Any], values: dict[str, int]
) -> None:
    energy = 460_000_000 * (end - start)
    sums = values | {
        "total_uj": energy,
        "cpu_uj": energy - 1,
        "other_uj": 1,
        "cpu_seconds": 64 * (end - start),
    }
    columns = ("start", "end", "usage_group", *sums)
    rows = ((start, end, group["id"], *sums.values()) for group in groups)
    copy_rows(connection, table, columns, rows)


_MARKS = ("@node@", "@job@", "@uid@", "@start@", "@end@", "@joules@", "@id@")


def _body_parts(step: str) -> list[str]:
    """Return the JSON text of a synthetic record as a list of pieces.

    The text is cut at the values that differ from record to record. The benchmark inserts these values.
    """
    node = SimulatedNode(SimulatedWorkload(trace_points=0), 0, 1, time.time() - 7200.0)
    node.job_end = time.time()
    record = next(item["record"] for item in node.end_job() if (item["record"]["step"] or "") == step)
    record |= {"node": "@node@", "job_id": "@job@", "uid": "@uid@", "start": "@start@", "end": "@end@"}
    record |= {"record_id": "@id@", "user": "user@uid@"}
    record["components"][0]["energy_joules"] = "@joules@"
    body = json.dumps(record, separators=(",", ":"))
    for mark in _MARKS:
        if mark not in ("@node@", "@id@"):
            body = body.replace(f'"{mark}"', mark)
    parts = [body]
    for number, mark in enumerate(_MARKS):
        parts = [
            piece
            for part in parts
            for piece in (_joined(part.split(mark), f"\0{number}") if not part.startswith("\0") else [part])
        ]
    return parts


def _joined(pieces: list[str], mark: str) -> list[str]:
    result = [pieces[0]]
    for piece in pieces[1:]:
        result += [mark, piece]
    return result


def _body(parts: Sequence[str], values: Row) -> str:
    return "".join(str(values[int(part[1:])]) if part.startswith("\0") else part for part in parts)
