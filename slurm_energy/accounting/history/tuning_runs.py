"""Database table of the runs from which response curves of programs are learned.

A response curve is the relative time and power of a program at different settings. The module also finds
finished jobs whose runs are not yet in the table. Each run is learned once: the transaction that stores the
run also marks its job as learned. A crash therefore neither loses nor repeats a run. The attributes `body`
and `bodies` are JSON text that this module does not interpret; see `tuning.learned_run`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    case,
    delete,
    func,
    or_,
    select,
    text,
    update,
)

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.json_fields import text_value
from slurm_energy.accounting.schema.tables import MAX_NAME
from slurm_energy.accounting.schema.tables import jobs as _jobs
from slurm_energy.accounting.schema.tables import records as _records
from slurm_energy.accounting.schema.tables import tuning_runs as _runs
from slurm_energy.accounting.schema.tables import tuning_starts as _starts
from slurm_energy.accounting.upserts import delete_selected, insert_missing
from slurm_energy.user_quota import fair_quota

SITE: Final = ""
"""Owner of the runs of the site's characterisation. No user has an empty name."""
RUNS_PER_PROGRAM: Final = 64
"""Number of newest runs that are kept for one program of one user on one kind of hardware."""
MAX_RUNS: Final = 100_000
"""Number of runs kept in total, about 200 MB. Beyond it, owners with the most runs lose their oldest runs."""
MAX_BODY_BYTES: Final = 65_536
BATCH: Final = 100
LEARNING_BATCH: Final = 20
MAX_RECORD_BYTES: Final = 262_144
"""Maximum length of a record that is read for learning. A job with a longer record is not learned."""
MAX_NODES: Final = 16
"""Maximum number of record bodies read per job. A few suffice, because all nodes have equal settings."""

_STORED: Final = select(
    *_runs.c["owner", "hardware", "workload", "fingerprint", "model", "end", "body"],
)
_PENDING: Final = text("learned AND NOT tuning_learned")  # as in the condition of the index


class UnlearnedJob(NamedTuple):
    """A finished job from whose runs the tuning has not learned yet.

    Attributes:
        key: row id of the job.
        user: login name of the owner in Slurm's accounting; None if unknown.
        state: job state, as Slurm writes it.
        nodes: number of nodes; None if unknown.
        display_id: job id as users write it.
        records: number of records of the whole job (not of steps), one per node.
        energy_joules: energy on all nodes; None if the energy of a node is unknown.
        start, end: earliest start and latest end of the records in Unix seconds.
        fingerprint: digest of the batch script; None if unknown.
        bodies: JSON texts of the records of at most `MAX_NODES` nodes. None stands for a text longer than
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
    """A run of a program in the database, from which tuning learns.

    Attributes:
        owner: login name of the user; `SITE` for characterisation runs of the site.
        hardware: kind of hardware.
        workload: `fingerprint` if it is known, else `model`. For a characterisation run, it is the class
            of the reference compute kernel.
        fingerprint, model: two names of the program. `fingerprint` is the digest of the batch script;
            None if unknown. `model` is the value of `--energy-model`; None if not given.
        end: end of the run in Unix seconds.
        body: the run's measurements as JSON text.
    """

    owner: str
    hardware: str
    workload: str
    fingerprint: str | None
    model: str | None
    end: float
    body: str


def unlearned_jobs(connection: Connection, limit: int = LEARNING_BATCH) -> list[UnlearnedJob]:
    """Return at most `limit` finished jobs from which tuning has not learned yet."""
    columns = _jobs.c["id", "user", "state", "nodes", "display_id"]
    query = select(*columns).where(_PENDING).order_by(_jobs.c.updated, _jobs.c.id).limit(limit)
    return [_with_records(connection, row) for row in connection.execute(query).fetchall()]


def _with_records(connection: Connection, job: Row[Any]) -> UnlearnedJob:
    columns, own = _records.c, (_records.c.job == job.id, _records.c.step == "")
    fingerprint = text_value(connection, columns.body, "fingerprint").label("fingerprint")
    values = select(*columns["energy_joules", "start", "end"], fingerprint).where(*own)
    rows = connection.execute(values.order_by(columns.node, columns.id)).fetchall()
    short_body = case((func.length(columns.body) <= MAX_RECORD_BYTES, columns.body))
    bodies = select(short_body).where(*own).order_by(columns.node, columns.id).limit(MAX_NODES)
    complete = bool(rows) and all(row.energy_joules is not None for row in rows)
    return UnlearnedJob(
        *(job.id, job.user, job.state, job.nodes, job.display_id, len(rows)),
        energy_joules=math.fsum(row.energy_joules for row in rows) if complete else None,
        start=min((row.start for row in rows), default=0.0),
        end=max((row.end for row in rows), default=0.0),
        fingerprint=next((row.fingerprint for row in rows if row.fingerprint is not None), None),
        bodies=tuple(connection.execute(bodies).scalars()),
    )


def store_learned(connection: Connection, learned: Iterable[tuple[int, StoredRun | None]]) -> None:
    """Store the tuning runs of jobs and mark the jobs as evaluated, in one transaction.

    Args:
        connection: connection of the writing thread.
        learned: row id and run of each job. If the run is None, nothing can be learned from the job.
    """
    with transaction(connection):
        for key, run in learned:
            connection.execute(update(_jobs).where(_jobs.c.id == key).values(tuning_learned=True))
            if run is not None and _fits(run):
                _insert(connection, key, run)


def _fits(run: StoredRun) -> bool:
    """Return whether the table of runs can hold a run.

    The hardware of a job on many kinds of processors can have a longer name. PostgreSQL and MariaDB would
    refuse the run together with the marks of the other jobs of the transaction.
    """
    names = (run.owner, run.hardware, run.workload, run.fingerprint, run.model)
    return len(run.body.encode()) <= MAX_BODY_BYTES and all(len(name or "") <= MAX_NAME for name in names)


def _insert(connection: Connection, key: int, run: StoredRun) -> None:
    insert_missing(connection, _runs, [run._asdict() | {"job": key}])
    columns = _runs.c
    newest_first = (
        select(columns.id)
        .where(columns.owner == run.owner, columns.workload == run.workload)
        .where(columns.hardware == run.hardware)
        .order_by(columns.end.desc(), columns.id.desc())
    )
    # MariaDB has no OFFSET without a LIMIT. At most one run is in excess, except after an upgrade.
    delete_selected(connection, _runs, newest_first.offset(RUNS_PER_PROGRAM).limit(BATCH))


def runs_of(
    connection: Connection, owner: str, hardware: str, *, fingerprint: str | None, model: str | None
) -> list[StoredRun]:
    """Return the runs of a program, oldest first.

    The runs are found by the program's fingerprint, or else by its model.

    Args:
        connection: connection to the database.
        owner: login name of the user. Runs of other users are never returned.
        hardware: kind of hardware.
        fingerprint: digest of the batch script; None if unknown.
        model: value of `--energy-model`; None if the job gave none.
    """
    columns = _runs.c
    for column, value in ((columns.workload, fingerprint), (columns.model, model)):
        if value is None:
            continue
        # Each variant of a program in a sweep has its own workload name.
        own = or_(columns.workload == columns.fingerprint, columns.workload == columns.model)
        query = _STORED.where(columns.owner == owner, columns.hardware == hardware, column == value, own)
        if found := _newest(connection, query, RUNS_PER_PROGRAM):
            return found
    return []


def site_runs(connection: Connection, hardware: str) -> list[StoredRun]:
    """Return the site's stored runs of reference kernels on one kind of hardware, oldest first.

    With these runs the site has measured how the hardware responds to settings (characterisation).
    """
    query = _STORED.where(_runs.c.owner == SITE, _runs.c.hardware == hardware)
    return [StoredRun(*row) for row in connection.execute(query.order_by(_runs.c.end, _runs.c.id))]


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
        owners: login names, or `SITE`; None means all owners.
        workload: fingerprint, model or class of a reference compute kernel; None means any.
        hardware: kind of hardware; None means any.
        limit: maximum number of runs.
    """
    conditions = _conditions(owners, hardware) + _of_workload(workload)
    return _newest(connection, _STORED.where(*conditions), limit)


def _newest(connection: Connection, query: Select[Any], limit: int) -> list[StoredRun]:
    rows = connection.execute(query.order_by(_runs.c.end.desc(), _runs.c.id.desc()).limit(limit)).fetchall()
    return [StoredRun(*row) for row in reversed(rows)]


def owners_of_models(connection: Connection) -> list[str]:
    """Return the users who have runs with `--energy-model`, in alphabetical order."""
    columns = _runs.c
    query = select(columns.owner).distinct().where(columns.model.is_not(None), columns.owner != SITE)
    return list(connection.execute(query.order_by(columns.owner)).scalars())


def forget(
    connection: Connection, owner: str, workload: str | None = None, hardware: str | None = None
) -> int:
    """Delete what tuning has learned about an owner's programs.

    Matching runs and unfinished explorations (test runs at other settings) are deleted. Settings that were
    fixed by hand (pins) are not deleted. Return the number of deleted runs.

    Args:
        connection: connection of the writing thread.
        owner: login name, or `SITE`.
        workload: fingerprint, model or class of a reference compute kernel; None means all.
        hardware: kind of hardware; None means all.
    """
    runs = _conditions([owner], hardware) + _of_workload(workload)
    starts = [_starts.c.owner == owner]
    starts += [] if hardware is None else [_starts.c.hardware == hardware]
    starts += [] if workload is None else [_starts.c.workload == workload]
    with transaction(connection):
        deleted = connection.execute(delete(_runs).where(*runs)).rowcount
        connection.execute(delete(_starts).where(*starts))
    return deleted


def _conditions(owners: Sequence[str] | None, hardware: str | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if owners is not None:
        conditions.append(_runs.c.owner.in_(owners))
    if hardware is not None:
        conditions.append(_runs.c.hardware == hardware)
    return conditions


def _of_workload(workload: str | None) -> list[ColumnElement[bool]]:
    return [] if workload is None else [or_(_runs.c.workload == workload, _runs.c.model == workload)]


def drop_old(connection: Connection, before: float) -> int:
    """Delete old tuning runs from the database.

    A run is deleted if it ended before `before`. If more than `MAX_RUNS` runs are stored, the oldest runs
    of the owners with the most runs are deleted as well. One call deletes at most `BATCH` runs for each
    of the two reasons.

    Args:
        connection: connection of the writing thread.
        before: Unix seconds.

    Returns:
        The number of deleted runs. If it is `BATCH` or more, call the function again.
    """
    columns = _runs.c
    oldest = select(columns.id).order_by(columns.end, columns.id)
    with transaction(connection):
        deleted = delete_selected(connection, _runs, oldest.where(columns.end < before).limit(BATCH))
        counts = connection.execute(
            select(columns.owner, func.count()).group_by(columns.owner).order_by(columns.owner)
        ).fetchall()
        total = sum(count for _, count in counts)
        if total <= MAX_RUNS:
            return deleted
        quota, left = fair_quota((count for _, count in counts), MAX_RUNS), BATCH
        for owner, count in counts:
            excess = min(count - quota, left)
            if excess > 0:
                own = oldest.where(columns.owner == owner).limit(excess)
                removed = delete_selected(connection, _runs, own)
                deleted, left = deleted + removed, left - removed
    return deleted
