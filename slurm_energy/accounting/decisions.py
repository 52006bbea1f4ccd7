"""Changes that the priority engine made to jobs, stored for audit and shown with the jobs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema.tables import decisions as _decisions
from slurm_energy.accounting.schema.tables import jobs as _jobs
from slurm_energy.accounting.schema.tables import records as _records

SHAPE: Final = "shape"
REQUEUE: Final = "requeue"
DEFER: Final = "defer"
RELEASE: Final = "release"
SUSPEND: Final = "suspend"
NOT_SUSPENDED: Final = "not_suspended"
_CHUNK: Final = 500
_SAME_SUBMIT_S: Final = 1.5  # sacct and slurmctld round to seconds
_OF_RECORDS: Final = (
    select(*_decisions.c["id", "job_id", "submit", "time", "kind", "why", "details"])
    .select_from(_records)
    .join(_jobs, _jobs.c.id == _records.c.job)
    .join(
        _decisions,
        and_(
            _decisions.c.cluster == _jobs.c.cluster,
            _decisions.c.job_id == _jobs.c.job_id,
            func.abs(_decisions.c.submit - _jobs.c.submit) < _SAME_SUBMIT_S,
        ),
    )
    .where(_records.c.id.in_(bindparam("ids", expanding=True)))
)


@dataclass(frozen=True, slots=True)
class Decision:
    """One change that the priority engine made to a job. Times are Unix seconds.

    Attributes:
        job_id, submit: job id and submission time, which together identify the job.
        time: time at which Slurm accepted the change.
        kind: `shape`: the job now requests other GPUs. `requeue`: the job was preempted for another job.
            `defer`: the start of the job is delayed. `release`: the job is no longer delayed. `suspend`: the
            job is requeued to continue later; this entry is stored before the requeue is requested.
            `not_suspended`: the requeue of the preceding `suspend` did not take place.
        why: reason, one line of text.
        details: further values, which depend on `kind`. `shape`: `offered` (list of the GPU requests that
            were compared), `chosen`, `requested_gres` and `excluded_nodes`; `requested_gres` and
            `excluded_nodes` are the values before the first change. `requeue`: `for_job` (id of the
            preempting job) and `lost_joules`. `defer`: the plan, see `controller.deferral.jobs`. `release`:
            `planned_start_s` and `held_s`. `suspend`: see `controller.deferral.suspended_jobs`.
            `not_suspended`: `since_s`, which names the entry of kind `suspend`.
    """

    job_id: int
    submit: float
    time: float
    kind: str
    why: str
    details: dict[str, Any] = field(default_factory=dict)


def save(connection: Connection, cluster: str, decisions: Iterable[Decision]) -> None:
    """Store scheduling decisions about jobs in the database, in one transaction.

    `cluster` is Slurm's ClusterName of the cluster to which the jobs belong.
    """
    rows = [
        {**dataclasses.asdict(decision), "cluster": cluster, "details": json.dumps(decision.details)}
        for decision in decisions
    ]
    with transaction(connection):
        if rows:
            connection.execute(insert(_decisions), rows)


def since(connection: Connection, cluster: str, time: float) -> list[Decision]:
    """Return the stored decisions about jobs from a point in time on, oldest first.

    senergyctld calls this function when it starts.

    Args:
        connection: connection to the database.
        cluster: Slurm's name of the cluster.
        time: Unix seconds; decisions made at this time or later are returned.
    """
    columns = _decisions.c
    rows = connection.execute(
        select(columns.job_id, columns.submit, columns.time, columns.kind, columns.why, columns.details)
        .where(columns.cluster == cluster, columns.time >= time)
        .order_by(columns.time, columns.id)
    )
    return [
        Decision(job_id, submit, time, kind, why, json.loads(details))
        for job_id, submit, time, kind, why, details in rows
    ]


def of_records(connection: Connection, record_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the decisions about the jobs of the given records, oldest first, as in `GET /v1/jobs/ID`.

    A job whose facts have not been read from Slurm's accounting yet has no entry.

    Args:
        connection: connection to the database.
        record_ids: row ids of records.

    Returns:
        One dict per decision: the fields of `Decision` except `details`, and the entries of `details`.
    """
    by_row: dict[int, dict[str, Any]] = {}
    for first in range(0, len(record_ids), _CHUNK):
        ids = list(record_ids[first : first + _CHUNK])
        rows = connection.execute(_OF_RECORDS, {"ids": ids})
        for row in rows:
            by_row[row[0]] = {
                "job_id": row[1],
                "submit": row[2],
                "time": row[3],
                "kind": row[4],
                "why": row[5],
                **json.loads(row[6]),
            }
    ordered = sorted(by_row.items(), key=lambda item: (item[1]["time"], item[1]["job_id"], item[0]))
    return [decision for _, decision in ordered]


def for_owners(decisions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of records of the queue engine's decisions that owners of jobs may see.

    The key `for_job` is left out, because its value is the id of another user's job.
    """
    return [{key: value for key, value in one.items() if key != "for_job"} for one in decisions]


def unnamed_jobs(decisions: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of different jobs in the decisions for which other jobs were preempted.

    The decisions name such a job under the key `for_job`. It belongs to another user. `for_owners`
    removes the key from the decisions that owners of jobs may see.
    """
    return len({one["for_job"] for one in decisions if one.get("for_job") is not None})


def drop_before(connection: Connection, before: float) -> int:
    """Delete the decisions made before `before` (Unix seconds) and return how many were deleted."""
    with transaction(connection):
        return connection.execute(delete(_decisions).where(_decisions.c.time < before)).rowcount
