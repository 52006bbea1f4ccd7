"""Read finished jobs with complete records, in the order in which their job facts last changed.

Job facts are Slurm's own data about a job. They count as changed when a further record of the job arrives.
The order lets a reader continue after the last job that it has read.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, and_, or_, select

from slurm_energy.accounting.schema import tables

BATCH: Final = 50
_jobs, _records = tables.jobs.c, tables.records.c


class EndedJob(NamedTuple):
    """A finished job with the sums of its records.

    Attributes:
        updated: Unix seconds of the last change of the job's facts, or of the arrival of its last record.
        cluster, job_id, submit, display_id: identity of the job.
        energy_joules: energy on all nodes; None if the energy of a node is unknown.
        start, end: earliest start and latest end of the records, Unix seconds.
        policy: energy policy.
        nodes: number of nodes.
        record_id: id of the first record. The energy by time can be requested with it.
    """

    updated: float
    cluster: str
    job_id: int
    submit: float
    display_id: str
    energy_joules: float | None
    start: float
    end: float
    policy: str
    nodes: int
    record_id: str


Position = tuple[float, int]
"""Position in the order of jobs: Unix seconds of the last change of a job's facts, and the job's row id."""


class EndedJobs(NamedTuple):
    """One batch of the finished jobs.

    Attributes:
        jobs: those jobs of the batch for which the records of all their nodes have arrived.
        last: position in the order of all finished jobs after which the next batch begins.
        more: whether there may be further finished jobs now.
    """

    jobs: list[EndedJob]
    last: Position
    more: bool


def ended_jobs(connection: Connection, after: Position, limit: int = BATCH) -> EndedJobs:
    """Return a batch of finished jobs that follow a position in the order of their last change.

    Only jobs whose records have all arrived are returned. An incomplete job is left out. Its next record
    moves it to the end of the order, where a later call reads it again.

    Args:
        connection: connection to the database.
        after: attribute `last` of the previous batch.
        limit: maximum number of jobs to read.
    """
    names = ("id", "updated", "cluster", "job_id", "submit", "display_id", "nodes")
    updated, row_id = after
    is_later = or_(_jobs.updated > updated, and_(_jobs.updated == updated, _jobs.id > row_id))
    query = select(*(_jobs[name] for name in names)).where(_jobs.finished, _jobs.updated >= updated, is_later)
    rows = connection.execute(query.order_by(_jobs.updated, _jobs.id).limit(limit)).fetchall()
    found = [job for row in rows if (job := _ended_job(connection, row)) is not None]
    last = (rows[-1].updated, rows[-1].id) if rows else after
    return EndedJobs(found, last, len(rows) == limit)


def _ended_job(connection: Connection, row: Row[Any]) -> EndedJob | None:
    """Return the job with the facts in `row`; None if records of the job are missing."""
    names = ("record_id", "energy_joules", "start", "end", "policy")
    query = select(*(_records[name] for name in names)).where(_records.job == row.id, _records.step == "")
    records = connection.execute(query.order_by(_records.node, _records.id)).fetchall()
    if not records or len(records) < (row.nodes or 1):
        return None
    joules = [record.energy_joules for record in records]
    energy = None if None in joules else math.fsum(joules)
    start, end = min(record.start for record in records), max(record.end for record in records)
    return EndedJob(
        *(row.updated, row.cluster, row.job_id, row.submit, row.display_id),
        *(energy, start, end, records[0].policy, len(records)),
        records[0].record_id,
    )
