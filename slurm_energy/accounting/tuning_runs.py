"""Runs from which the response curves of programs are learned, and the jobs that are still to be learned.

A run is learned once: the transaction that stores it also marks its job. A crash therefore neither loses nor
repeats a run. The bodies are JSON text that this module does not interpret; see `tuning.learned_run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection

from slurm_energy.accounting.engine import transaction
from slurm_energy.user_quota import fair_quota

SITE: Final = ""
"""Owner of the runs of the site's characterisation. No user has an empty name."""
RUNS_PER_PROGRAM: Final = 64
"""Number of newest runs kept of one program of one user on one kind of hardware."""
MAX_RUNS: Final = 100_000
"""Number of runs kept in total, about 200 MB. Beyond it, owners with the most runs lose their oldest runs."""
MAX_BODY_BYTES: Final = 65_536
BATCH: Final = 100
LEARNING_BATCH: Final = 20
MAX_RECORD_BYTES: Final = 262_144
"""Maximum length of a record that is read for learning. A job with a longer record is not learned."""
MAX_NODES: Final = 16
"""Number of records of a job whose bodies are read. All nodes of a tuned job have the same settings."""

_TOTALS = """
    SELECT count(*), count(energy_joules), sum(energy_joules), min(start), max("end"),
        max(json_extract(body, '$.fingerprint'))
    FROM records WHERE job = ? AND step = ''
"""


class UnlearnedJob(NamedTuple):
    """A finished job whose runs are to be learned.

    Attributes:
        key: row id of the job.
        user: login name of the owner in Slurm's accounting; None if unknown.
        state: job state, as Slurm writes it.
        nodes: number of nodes; None if unknown.
        display_id: job id as users write it.
        records: number of records of whole jobs, one per node.
        energy_joules: energy on all nodes; None if that of a node is unknown.
        start, end: Unix seconds of the first start and the last end in the records.
        fingerprint: digest of the batch script; None if unknown.
        bodies: JSON texts of the records of at most `MAX_NODES` nodes; None: a text longer than
            `MAX_RECORD_BYTES`.
    """

    key: int
    user: str | None
    state: str
    nodes: int | None
    display_id: str
    records: int
    energy_joules: float | None
    start: float
    end: float
    fingerprint: str | None
    bodies: tuple[str | None, ...]


class StoredRun(NamedTuple):
    """A run in the database.

    Attributes:
        owner: login name of the user, or `SITE`.
        hardware: kind of hardware.
        workload: fingerprint of the script, else `--energy-model`, or the class of a reference kernel.
        fingerprint, model: None if unknown or not given.
        end: Unix seconds.
        body: JSON text.
    """

    owner: str
    hardware: str
    workload: str
    fingerprint: str | None
    model: str | None
    end: float
    body: str


def unlearned_jobs(connection: Connection, limit: int = LEARNING_BATCH) -> list[UnlearnedJob]:
    """Return at most `limit` jobs that are in the history of runs and not marked as learned here."""
    rows = connection.exec_driver_sql(
        "SELECT id, user, state, nodes, display_id FROM jobs WHERE learned AND NOT tuning_learned"
        " ORDER BY updated LIMIT ?",
        (limit,),
    ).fetchall()
    return [_with_records(connection, row) for row in rows]


def _with_records(connection: Connection, row: tuple[int, str | None, str, int | None, str]) -> UnlearnedJob:
    key, user, state, nodes, display_id = row
    count, known, joules, start, end, fingerprint = connection.exec_driver_sql(_TOTALS, (key,)).one()
    bodies = connection.exec_driver_sql(
        "SELECT CASE WHEN length(body) <= ? THEN body END FROM records WHERE job = ? AND step = ''"
        " ORDER BY node LIMIT ?",
        (MAX_RECORD_BYTES, key, MAX_NODES),
    ).fetchall()
    return UnlearnedJob(
        *(key, user, state, nodes, display_id, count),
        energy_joules=joules if count and known == count else None,
        start=start or 0.0,
        end=end or 0.0,
        fingerprint=fingerprint,
        bodies=tuple(body for (body,) in bodies),
    )


def store_learned(connection: Connection, learned: Iterable[tuple[int, StoredRun | None]]) -> None:
    """Store the runs of jobs and mark the jobs as learned, in one transaction.

    Args:
        connection: connection of the writing thread.
        learned: row id and run of each job; None: nothing can be learned from the job.
    """
    with transaction(connection):
        for key, run in learned:
            connection.exec_driver_sql("UPDATE jobs SET tuning_learned = 1 WHERE id = ?", (key,))
            if run is not None and len(run.body.encode()) <= MAX_BODY_BYTES:
                _insert(connection, key, run)


def _insert(connection: Connection, key: int, run: StoredRun) -> None:
    connection.exec_driver_sql(
        'INSERT INTO tuning_runs (job, owner, hardware, workload, fingerprint, model, "end", body)'
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (key, *run),
    )
    same = [run.owner, run.workload, run.hardware]
    connection.exec_driver_sql(
        "DELETE FROM tuning_runs WHERE owner = ? AND workload = ? AND hardware = ? AND id NOT IN ("
        "SELECT id FROM tuning_runs WHERE owner = ? AND workload = ? AND hardware = ?"
        ' ORDER BY "end" DESC, id DESC LIMIT ?)',
        (*same, *same, RUNS_PER_PROGRAM),
    )


def runs_of(
    connection: Connection, owner: str, hardware: str, *, fingerprint: str | None, model: str | None
) -> list[StoredRun]:
    """Return the runs of a program, oldest first: those of its fingerprint, else those of its model.

    Args:
        connection: connection to the database.
        owner: login name of the user. Runs of other users are never returned.
        hardware: kind of hardware.
        fingerprint: digest of the batch script; None if unknown.
        model: value of `--energy-model`; None if the job gave none.
    """
    for column, value in (("workload", fingerprint), ("model", model)):
        if value is None:
            continue
        # Variants of a program in a sweep have a workload of their own.
        rows = connection.exec_driver_sql(
            f'SELECT owner, hardware, workload, fingerprint, model, "end", body FROM tuning_runs'
            f" WHERE owner = ? AND hardware = ? AND {column} = ? AND workload IN (fingerprint, model)"
            ' ORDER BY "end" DESC, id DESC LIMIT ?',
            (owner, hardware, value, RUNS_PER_PROGRAM),
        ).fetchall()
        if rows:
            return [StoredRun(*row) for row in reversed(rows)]
    return []


def site_runs(connection: Connection, hardware: str) -> list[StoredRun]:
    """Return the runs of the site's characterisation of one kind of hardware, oldest first."""
    rows = connection.exec_driver_sql(
        'SELECT owner, hardware, workload, fingerprint, model, "end", body FROM tuning_runs'
        ' WHERE owner = ? AND hardware = ? ORDER BY "end", id',
        (SITE, hardware),
    )
    return [StoredRun(*row) for row in rows]


def find_runs(
    connection: Connection,
    owners: Sequence[str] | None,
    *,
    workload: str | None = None,
    hardware: str | None = None,
    limit: int = 10_000,
) -> list[StoredRun]:
    """Return the newest runs that match all conditions, oldest first.

    Args:
        connection: connection to the database.
        owners: login names, or `SITE`; None: of every owner.
        workload: fingerprint, model or class; None: any.
        hardware: kind of hardware; None: any.
        limit: maximum number of runs.
    """
    conditions, values = _conditions(owners, workload, hardware)
    rows = connection.exec_driver_sql(
        'SELECT owner, hardware, workload, fingerprint, model, "end", body FROM tuning_runs'
        f' WHERE {conditions} ORDER BY "end" DESC, id DESC LIMIT ?',
        (*values, limit),
    ).fetchall()
    return [StoredRun(*row) for row in reversed(rows)]


def owners_of_models(connection: Connection) -> list[str]:
    """Return the users who have runs with `--energy-model`."""
    rows = connection.exec_driver_sql(
        "SELECT DISTINCT owner FROM tuning_runs WHERE model IS NOT NULL AND owner <> ?", (SITE,)
    )
    return [owner for (owner,) in rows]


def forget(
    connection: Connection, owner: str, workload: str | None = None, hardware: str | None = None
) -> int:
    """Delete the runs and unfinished explorations of one owner that match, and return the number of runs.

    A pin stays.

    Args:
        connection: connection of the writing thread.
        owner: login name, or `SITE`.
        workload: fingerprint, model or class; None: all.
        hardware: kind of hardware; None: all.
    """
    conditions, values = _conditions([owner], workload, hardware)
    with transaction(connection):
        deleted = connection.exec_driver_sql(
            f"DELETE FROM tuning_runs WHERE {conditions}", tuple(values)
        ).rowcount
        plain, values = _conditions([owner], None, hardware)
        if workload is not None:
            plain, values = f"{plain} AND workload = ?", [*values, workload]
        connection.exec_driver_sql(f"DELETE FROM tuning_starts WHERE {plain}", tuple(values))
    return deleted


def _conditions(
    owners: Sequence[str] | None, workload: str | None, hardware: str | None
) -> tuple[str, list[str]]:
    parts = ["1"]
    values: list[str] = []
    if owners is not None:
        parts.append(f"owner IN ({','.join('?' * len(owners))})")
        values += owners
    if workload is not None:
        parts.append("(workload = ? OR model = ?)")
        values += [workload, workload]
    if hardware is not None:
        parts.append("hardware = ?")
        values.append(hardware)
    return " AND ".join(parts), values


def drop_old(connection: Connection, before: float) -> int:
    """Delete at most `BATCH` runs that ended before `before`, and at most `BATCH` runs beyond `MAX_RUNS`.

    Args:
        connection: connection of the writing thread.
        before: Unix seconds.

    Returns:
        The number of deleted runs; if it is `BATCH` or more, call again.
    """
    with transaction(connection):
        deleted = connection.exec_driver_sql(
            'DELETE FROM tuning_runs WHERE id IN (SELECT id FROM tuning_runs WHERE "end" < ? LIMIT ?)',
            (before, BATCH),
        ).rowcount
        counts = connection.exec_driver_sql(
            "SELECT owner, count(*) FROM tuning_runs GROUP BY owner"
        ).fetchall()
        total = sum(count for _, count in counts)
        if total <= MAX_RUNS:
            return deleted
        quota, left = fair_quota((count for _, count in counts), MAX_RUNS), BATCH
        for owner, count in counts:
            excess = min(count - quota, left)
            if excess > 0:
                removed = connection.exec_driver_sql(
                    "DELETE FROM tuning_runs WHERE id IN "
                    '(SELECT id FROM tuning_runs WHERE owner = ? ORDER BY "end" LIMIT ?)',
                    (owner, excess),
                ).rowcount
                deleted, left = deleted + removed, left - removed
    return deleted
