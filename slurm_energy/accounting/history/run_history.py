"""The history of finished runs, from which run times and energies of jobs are predicted.

The size of the history is bounded. A run enters the history once: when Slurm's data about the job is final
and the records of all its nodes have arrived. The transaction that adds a run also marks the run's job as
learned. A crash therefore neither loses nor repeats a run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Connection,
    Row,
    Select,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from slurm_energy.accounting.decisions import SUSPEND
from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.records.row_pages import read_pages
from slurm_energy.accounting.schema.tables import decisions as _decisions
from slurm_energy.accounting.schema.tables import history as _history
from slurm_energy.accounting.schema.tables import jobs as _jobs
from slurm_energy.accounting.schema.tables import predictions as _predictions
from slurm_energy.accounting.schema.tables import records as _records
from slurm_energy.accounting.upserts import delete_selected
from slurm_energy.records import is_budget_limited
from slurm_energy.slurm.tres import gpus_of_run, parse_tres
from slurm_energy.user_quota import fair_quota

RUNS_PER_KIND: Final = 64
"""Number of newest runs that are kept for jobs with equal user, name, script, resources, limit, policy and
caps.
"""

MAX_RUNS: Final = 200_000
"""Number of runs kept in total, about 100 MB. Beyond it, users with the most runs lose their oldest runs."""

SAME_START_S: Final = 2.0
"""Maximum difference, in seconds, between two start times of one job that count as the same start."""

MISSING_AFTER_S: Final = 3600.0
"""Seconds after which a run is stored although records of some nodes are missing; its energy is unknown."""

BATCH: Final = 500
_PAGE_ROWS: Final = 2000
_CONTINUED: Final = "CONTINUED"
_REQUEUE_S: Final = 900.0  # Slurm submits a requeued job again when its run has ended
_CLOCK_S: Final = 300.0  # difference of the clocks of two hosts, above which munge refuses

_PENDING: Final = text("finished AND NOT learned")  # as in the condition of the index
_JOB_COLUMNS: Final = _jobs.c[
    "id", "cluster", "job_id", "submit", "user", "account", "partition", "name", "state", "start", "end",
    "elapsed_s", "nodes", "time_limit_s", "requested", "allocated",
]  # fmt: skip
_RECORD_COLUMNS: Final = _records.c["energy_joules", "start", "end", "policy", "body"]
# Built once, with parameters: SQLAlchemy takes longer to build a statement than SQLite to execute it.
_JOB: Final = select(*_JOB_COLUMNS).where(_jobs.c.id == bindparam("key"))
_RECORDS_OF_JOB: Final = (
    select(*_RECORD_COLUMNS)
    .where(_records.c.job == bindparam("key"), _records.c.step == "")
    .order_by(_records.c.node, _records.c.id)
)
_PREDICTED: Final = (
    select(_predictions.c.predicted_s)
    .where(_predictions.c.cluster == bindparam("cluster"), _predictions.c.job_id == bindparam("job_id"))
    .where(_predictions.c.start.between(bindparam("first"), bindparam("last")))
    .order_by(_predictions.c.start)
    .limit(1)
)
_SUSPENDED: Final = (
    select(_decisions.c.id)
    .where(_decisions.c.cluster == bindparam("cluster"), _decisions.c.job_id == bindparam("job_id"))
    .where(_decisions.c.kind == SUSPEND, _decisions.c.time.between(bindparam("first"), bindparam("last")))
    .where(_decisions.c.submit < bindparam("submit"))
    .limit(1)
)
# MariaDB has no OFFSET without a LIMIT. At most one run is in excess, except after an upgrade.
_EXCESS: Final = (
    select(_history.c.id)
    .where(_history.c.kind == bindparam("kind"))
    .order_by(_history.c.end.desc(), _history.c.id.desc())
    .offset(RUNS_PER_KIND)
    .limit(BATCH)
)
_KIND = ("user", "name", "fingerprint", "nodes", "cpus", "gpus", "gpu_kind", "time_limit_s", "policy")


class FinishedRun(NamedTuple):
    """A finished run of a job. The value None means that a field is unknown or was not requested.

    `oracle.history.observed_run` describes the common fields. The fields listed here are additional, or
    differ from that description.

    Attributes:
        end: end of the run in Unix seconds.
        duration_s: run time in seconds.
        state: job state, as Slurm writes it. `CONTINUED` marks the last run of a job that was suspended;
            this run did only a part of the job's work.
        energy_joules: energy of the run on all nodes.
        gpu_joules: energy of all GPUs.
        predicted_s: prediction of the run time in seconds, made when the run started.
        budget_limited: whether a power budget limited the run for a notable time; None if no budget applied.
    """

    end: float
    duration_s: float
    state: str
    energy_joules: float | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    name: str | None = None
    fingerprint: str | None = None
    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_kind: str | None = None
    policy: str | None = None
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    time_limit_s: float | None = None
    gpu_joules: float | None = None
    predicted_s: float | None = None
    held_cpus: int | None = None
    memory_mib: int | None = None
    budget_limited: bool | None = None


PolicyCaps = Mapping[str, tuple[float | None, float | None]]
"""Power caps by energy policy: watts per node and per GPU for jobs that request no caps."""


def store_finished_runs(
    connection: Connection, now: float, policy_caps: PolicyCaps | None = None
) -> tuple[list[FinishedRun], bool]:
    """Add newly finished runs to the history, at most `BATCH` in one transaction.

    Args:
        connection: connection of the writing thread.
        now: current time, Unix seconds.
        policy_caps: caps of the site's policies; None means that no policy has caps.

    Returns:
        The new runs in the order of their ends, and True if there may be further new runs.
    """
    with transaction(connection):
        keys = connection.execute(_complete_jobs(now - MISSING_AFTER_S)).scalars().all()
        runs = [_read_run(connection, key, policy_caps or {}) for key in keys]
        runs = sorted((run for run in runs if run.duration_s > 0), key=lambda run: run.end)
        if keys:
            connection.execute(update(_jobs).where(_jobs.c.id.in_(keys)).values(learned=True))
        for run in runs:
            _insert(connection, run)
    return runs, len(keys) == BATCH


def _complete_jobs(missing_since: float) -> Select[int]:
    """Return the query for the ids of finished jobs that have runs which the history does not contain yet.

    Jobs that lack the records of some nodes are not selected, so that they do not delay other jobs.

    Args:
        missing_since: Unix seconds. A job whose last record arrived before this time is selected although it
            lacks records.
    """
    own_records = (_records.c.job == _jobs.c.id, _records.c.step == "")
    count = select(func.count()).select_from(_records).where(*own_records).scalar_subquery()
    last = select(func.max(_records.c.received)).where(*own_records).scalar_subquery()
    at_least_one = case((_jobs.c.nodes > 1, _jobs.c.nodes), else_=1)
    return (
        select(_jobs.c.id)
        .where(_PENDING, or_(count >= at_least_one, last <= missing_since))
        .order_by(_jobs.c.updated, _jobs.c.id)
        .limit(BATCH)
    )


def read_runs(connection: Connection) -> Iterator[FinishedRun]:
    """Yield all runs in the history, ordered by their ends."""
    columns = _history.c
    query = select(columns.body, columns.end, columns.id)
    for row in read_pages(connection, query, [columns.end, columns.id], _PAGE_ROWS):
        yield FinishedRun(**json.loads(row.body))


def delete_old_runs(connection: Connection, before: float) -> int:
    """Delete old runs from the history of runs, and return the number of deleted runs.

    A call deletes at most `BATCH` runs that ended before `before`. It also deletes at most `BATCH` runs
    by which the history exceeds its maximum of `MAX_RUNS` runs. The call also deletes the stored
    predictions of jobs that started before `before`.

    Args:
        connection: connection of the writing thread.
        before: Unix seconds.

    Returns:
        The number of deleted runs. If it is `BATCH` or more, call again.
    """
    columns = _history.c
    old = select(columns.id).where(columns.end < before).order_by(columns.end, columns.id).limit(BATCH)
    with transaction(connection):
        connection.execute(delete(_predictions).where(_predictions.c.start < before))
        return delete_selected(connection, _history, old) + _delete_excess(connection)


def _delete_excess(connection: Connection) -> int:
    """Delete the oldest runs of users with many runs, if there are more than `MAX_RUNS` in total.

    `MAX_RUNS` is divided fairly among the users. A user with more runs than the resulting quota loses the
    oldest runs. The function returns the number of deleted runs.
    """
    columns = _history.c
    counts = connection.execute(
        select(columns.user, func.count()).group_by(columns.user).order_by(columns.user)
    ).fetchall()
    if sum(count for _, count in counts) <= MAX_RUNS:
        return 0
    quota, deleted = fair_quota((count for _, count in counts), MAX_RUNS), 0
    for user, count in counts:
        excess = min(count - quota, BATCH - deleted)
        if excess > 0:
            own = columns.user.is_(None) if user is None else columns.user == user
            oldest = select(columns.id).where(own).order_by(columns.end, columns.id).limit(excess)
            deleted += delete_selected(connection, _history, oldest)
    return deleted


def _insert(connection: Connection, run: FinishedRun) -> None:
    kind = _kind(run)
    values = {name: value for name, value in run._asdict().items() if value is not None}
    body = json.dumps(values, separators=(",", ":"))
    connection.execute(insert(_history), [{"kind": kind, "end": run.end, "body": body, "user": run.user}])
    delete_selected(connection, _history, _EXCESS, {"kind": kind})


def _kind(run: FinishedRun) -> bytes:
    values = [getattr(run, name) for name in (*_KIND, "cap_watts", "gpu_cap_watts")]
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).digest()


def _read_run(connection: Connection, key: int, policy_caps: PolicyCaps) -> FinishedRun:
    """Return the run of the job whose row id is `key`.

    The run is computed from the job's facts and from the records of its nodes.
    """
    job = connection.execute(_JOB, {"key": key}).one()
    records = _JobRecords()
    for row in connection.execute(_RECORDS_OF_JOB, {"key": key}):
        records.add(row)
    requested, allocated = parse_tres(job.requested), parse_tres(job.allocated)
    measured_s = records.end - records.start
    policy_cap, policy_gpu_cap = policy_caps.get(records.policy, (None, None))
    complete = records.count >= (job.nodes or 1) and None not in records.joules
    gpus_complete = complete and records.gpu_joules and None not in records.gpu_joules
    return FinishedRun(
        end=job.end or records.end,
        duration_s=_duration(job.start, job.end, job.elapsed_s, measured_s),
        state=_CONTINUED if _continues_a_suspended_run(connection, job) else job.state,
        energy_joules=_total(records.joules) if complete else None,
        user=job.user,
        account=job.account,
        partition=job.partition,
        name=job.name or None,
        fingerprint=records.fingerprint,
        nodes=requested.nodes or job.nodes,
        cpus=requested.cpus,
        gpus=gpus_of_run(job.requested, records.gpus),
        gpu_kind=requested.gpu_kind,
        policy=records.policy,
        cap_watts=_watts(records.requested.get("cap_watts")) or policy_cap,
        gpu_cap_watts=_watts(records.requested.get("gpu_cap_watts")) or policy_gpu_cap,
        time_limit_s=job.time_limit_s,
        gpu_joules=_total(records.gpu_joules) if gpus_complete else None,
        predicted_s=_predicted_s(connection, job),
        held_cpus=allocated.cpus,
        memory_mib=allocated.memory_mib or None,  # 0: the site does not allocate memory
        budget_limited=records.budget_limited,
    )


class _JobRecords:
    """Collector of the energy records of one run of a job, one record per node."""

    def __init__(self) -> None:
        self.count = 0
        self.joules: list[float | None] = []
        self.gpu_joules: list[float | None] = []
        self.start, self.end = math.inf, -math.inf
        self.policy = ""
        self.requested: dict[str, Any] = {}
        self.fingerprint: str | None = None
        self.gpus = 0
        self.budget_limited: bool | None = None

    def add(self, row: Row[Any]) -> None:
        """Add the energy record of one node of the job."""
        body = json.loads(row.body)
        self.count += 1
        self.joules.append(row.energy_joules)
        self.gpu_joules += [
            component.get("energy_joules")
            for component in body.get("components", ())
            if str(component.get("name")).startswith("gpu[")
        ]
        self.start, self.end = min(self.start, row.start), max(self.end, row.end)
        self.policy = max(self.policy, row.policy)
        flags = {name: value for name, value in (body.get("requested") or {}).items() if value is not None}
        self.requested = flags | self.requested
        self.fingerprint = self.fingerprint or body.get("fingerprint")
        self.gpus += len(body.get("gpus") or ())
        if (capped_s := body.get("budget_capped_seconds")) is not None:
            self.budget_limited = self.budget_limited or is_budget_limited(capped_s, row.end - row.start)


def _total(joules: list[float | None]) -> float:
    return math.fsum(value for value in joules if value is not None)


def _predicted_s(connection: Connection, job: Row[Any]) -> float | None:
    if job.start is None:
        return None
    span = {"first": job.start - SAME_START_S, "last": job.start + SAME_START_S}
    return connection.execute(_PREDICTED, {"cluster": job.cluster, "job_id": job.job_id, **span}).scalar()


def _continues_a_suspended_run(connection: Connection, job: Row[Any]) -> bool:
    span = {"first": job.submit - _REQUEUE_S, "last": job.submit + _CLOCK_S}
    span["submit"] = job.submit - SAME_START_S  # not the run that was suspended
    key = {"cluster": job.cluster, "job_id": job.job_id, **span}
    return connection.execute(_SUSPENDED, key).scalar() is not None


def _duration(start: float | None, end: float | None, elapsed_s: float | None, measured_s: float) -> float:
    """Return the duration of a run in seconds from its energy records.

    The measured duration is corrected so that it differs from Slurm's duration by at most 1 s.

    Args:
        start: Unix seconds from Slurm's accounting; None means unknown.
        end: Unix seconds from Slurm's accounting; None means unknown.
        elapsed_s: Slurm's elapsed time in seconds. If it is None, `end` minus `start` replaces it. If
            `start` or `end` is None too, `measured_s` replaces it.
        measured_s: seconds from the first start to the last end of the run's records.
    """
    if elapsed_s is None:
        elapsed_s = end - start if start is not None and end is not None else measured_s
    return min(max(measured_s, elapsed_s - 1), elapsed_s + 1)


def _watts(text: str | float | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
