"""Job facts (what Slurm's accounting knows about a job) in the database.

This module selects the jobs to look up in Slurm, stores the results and links records to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from slurm_energy.accounting.engine import transaction
from slurm_energy.slurm.job_accounting import JobFacts, choose_run

_UPSERT = """
    INSERT INTO jobs (cluster, job_id, submit, display_id, name, account, partition, user, state, start,
        "end", elapsed_s, nodes, array_job_id, array_task_id, het_job_id, het_offset, time_limit_s, requested,
        finished, updated)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (cluster, job_id, submit) DO UPDATE SET
        display_id = excluded.display_id, name = excluded.name, account = excluded.account,
        partition = excluded.partition, user = excluded.user, state = excluded.state, start = excluded.start,
        "end" = excluded."end", elapsed_s = excluded.elapsed_s, nodes = excluded.nodes,
        array_job_id = excluded.array_job_id, array_task_id = excluded.array_task_id,
        het_job_id = excluded.het_job_id, het_offset = excluded.het_offset,
        time_limit_s = excluded.time_limit_s, requested = excluded.requested,
        finished = excluded.finished, updated = excluded.updated
    RETURNING id
"""
_LINK = """
    UPDATE records SET job = ?, account = coalesce(?, account), partition = coalesce(?, partition),
        user = coalesce(?, user) WHERE id = ?
"""
SETTLED_AFTER_S = 10.0
"""Delay after the end of a job, in seconds, after which the job's facts count as final.

slurmdbd may receive the end of a short job before the job's start and array task. Until it has received them,
it shows the job with the name `allocation`.
"""


class JobLookup(NamedTuple):
    """A job to look up in Slurm's accounting.

    Attributes:
        cluster: Slurm's ClusterName.
        job_id: Slurm's job id.
        new: True if the job has records that are not linked to facts. False if its facts are stored but not
            final.
    """

    cluster: str
    job_id: int
    new: bool


class StoredFacts(NamedTuple):
    """Result of storing job facts.

    Attributes:
        linked: number of records that were linked to facts.
        other_clusters: cluster names in Slurm's accounting that differ from the cluster in the records.
    """

    linked: int
    other_clusters: frozenset[str]


def pending_lookups(connection: Connection, since: float) -> list[JobLookup]:
    """Return the jobs that have records without facts, and the jobs whose facts are not final.

    Args:
        connection: connection to the database.
        since: Unix seconds. A job is left out if its records arrived, or its facts changed, before this time.
    """
    new = connection.exec_driver_sql(
        "SELECT DISTINCT cluster, job_id, 1 FROM records WHERE job IS NULL AND received >= ?", (since,)
    )
    lookups = [JobLookup(cluster, job_id, True) for cluster, job_id, _ in new]
    listed = {(job.cluster, job.job_id) for job in lookups}
    unfinished = connection.exec_driver_sql(
        "SELECT DISTINCT cluster, job_id FROM jobs WHERE NOT finished AND updated >= ?", (since,)
    )
    return lookups + [JobLookup(row[0], row[1], False) for row in unfinished if row not in listed]


def store(
    connection: Connection,
    facts_by_id: Mapping[int, Sequence[JobFacts]],
    jobs: Sequence[JobLookup],
    now: float,
) -> StoredFacts:
    """Store the facts of jobs, and link the records of these jobs to the facts, in one transaction.

    Args:
        connection: connection of the writing thread.
        facts_by_id: by job id, the facts of each run, from `slurm.job_accounting.read_job_facts`.
        jobs: the jobs that were looked up.
        now: current time, Unix seconds.
    """
    linked, others = 0, set()
    with transaction(connection):
        for job in jobs:
            runs = facts_by_id.get(job.job_id, ())
            fitting = [facts for facts in runs if facts.cluster in (None, job.cluster)]
            others |= {facts.cluster for facts in runs if facts.cluster not in (None, job.cluster)}
            if fitting:
                linked += _link(connection, job, fitting, now)
                _refresh(connection, job, fitting, now)
    return StoredFacts(linked, frozenset(name for name in others if name))


def _link(connection: Connection, job: JobLookup, runs: Sequence[JobFacts], now: float) -> int:
    rows = connection.exec_driver_sql(
        "SELECT id, restart_count, start FROM records WHERE cluster = ? AND job_id = ? AND job IS NULL",
        (job.cluster, job.job_id),
    ).fetchall()
    linked = 0
    for row_id, restart_count, start in rows:
        facts = choose_run(runs, restart_count, start)
        if facts is None or (facts.start is None and not _is_settled(facts, now)):
            continue
        key = _store_facts(connection, job.cluster, facts, now)
        connection.exec_driver_sql(_LINK, (key, facts.account, facts.partition, facts.user, row_id))
        linked += 1
    return linked


def _refresh(connection: Connection, job: JobLookup, runs: Sequence[JobFacts], now: float) -> None:
    rows = connection.exec_driver_sql(
        "SELECT submit FROM jobs WHERE cluster = ? AND job_id = ? AND NOT finished", (job.cluster, job.job_id)
    ).fetchall()
    by_submit = {facts.submit or 0.0: facts for facts in runs}
    for (submit,) in rows:
        if submit in by_submit:
            _store_facts(connection, job.cluster, by_submit[submit], now)


def _store_facts(connection: Connection, cluster: str, facts: JobFacts, now: float) -> int:
    values = [
        *(cluster, facts.job_id, facts.submit or 0.0, facts.display_id, facts.name, facts.account),
        *(facts.partition, facts.user, facts.state, facts.start, facts.end, facts.elapsed_s, facts.nodes),
        *(facts.array_job_id, facts.array_task_id, facts.het_job_id, facts.het_offset),
        *(facts.time_limit_s, facts.requested),
        *(facts.finished and _is_settled(facts, now), now),
    ]
    return int(connection.exec_driver_sql(_UPSERT, tuple(values)).scalar_one())


def _is_settled(facts: JobFacts, now: float) -> bool:
    return facts.end is None or now - facts.end >= SETTLED_AFTER_S
