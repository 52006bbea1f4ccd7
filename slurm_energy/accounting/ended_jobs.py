"""Jobs that have ended and whose records are complete, in the order in which they became so."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from sqlalchemy import Connection, select

from slurm_energy.accounting import tables

BATCH: Final = 50
_jobs, _records = tables.jobs.c, tables.records.c


class EndedJob(NamedTuple):
    """A finished job with the sums of its records.

    Attributes:
        updated: Unix seconds of the last change of its facts.
        cluster, job_id, submit, display_id: the job.
        energy_joules: energy on all nodes; None if that of a node is unknown.
        start, end: first start and last end of the records, Unix seconds.
        policy: energy policy.
        nodes: number of nodes.
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


def ended_jobs(connection: Connection, after: float, limit: int = BATCH) -> list[EndedJob]:
    """Return finished jobs whose facts changed after a time and which have a record of each node.

    Args:
        connection: connection to the database.
        after: Unix seconds; of the jobs changed at the same time, all or none are returned if `limit` allows.
        limit: maximum number of jobs.
    """
    columns = (
        _jobs.id,
        _jobs.updated,
        _jobs.cluster,
        _jobs.job_id,
        _jobs.submit,
        _jobs.display_id,
        _jobs.nodes,
    )
    query = select(*columns).where(_jobs.finished, _jobs.updated > after)
    found = []
    for row in connection.execute(query.order_by(_jobs.updated, _jobs.id).limit(limit)).fetchall():
        own = (_records.job == row.id, _records.step == "")
        values = select(_records.energy_joules, _records.start, _records.end, _records.policy).where(*own)
        records = connection.execute(values.order_by(_records.node, _records.id)).fetchall()
        if not records or len(records) < (row.nodes or 1):
            continue
        joules = [record.energy_joules for record in records]
        found.append(
            EndedJob(
                *(row.updated, row.cluster, row.job_id, row.submit, row.display_id),
                None if None in joules else math.fsum(joules),
                min(record.start for record in records),
                max(record.end for record in records),
                records[0].policy,
                len(records),
            )
        )
    return found
