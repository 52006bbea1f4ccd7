"""Job facts (what Slurm's accounting knows about a job) in the database.

This module selects the jobs to look up in Slurm, stores the results and links records to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, and_, insert, select, text, update

from slurm_energy.accounting import usage_tables
from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.tables import jobs, records
from slurm_energy.accounting.usage_rollup import note_changed_jobs
from slurm_energy.slurm.job_accounting import JobFacts, choose_run, overlaps

_COLUMNS: Final = (
    *("display_id", "name", "account", "partition", "user", "state", "start", "end", "elapsed_s", "nodes"),
    *("array_job_id", "array_task_id", "het_job_id", "het_offset", "time_limit_s", "requested"),
    *("allocated", "qos"),
)
"""Columns of `jobs` that have the names of facts."""
_UNFINISHED: Final = text("NOT finished")  # as in the condition of the index
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
        new: True if the job has records or energy that are not linked to facts. False if its facts are
            stored but not final.
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
    """Return the jobs that have records or energy periods without facts, and jobs whose facts are not final.

    Args:
        connection: connection to the database.
        since: Unix seconds. A job is left out if its records arrived, or its facts changed, before this time.
    """
    unknown = usage_tables.usage_unknown_jobs.c
    # Not DISTINCT, for which SQLite would read a whole index in its order instead of the few rows.
    without_facts = select(records.c.cluster, records.c.job_id).where(
        records.c.job.is_(None), records.c.received >= since
    )
    running = select(unknown.cluster, unknown.job_id).where(unknown.since >= since)
    unfinished = select(jobs.c.cluster, jobs.c.job_id).where(_UNFINISHED, jobs.c.updated >= since)
    lookups: dict[tuple[str, int], JobLookup] = {}
    for query, new in ((without_facts, True), (running, True), (unfinished, False)):
        for key in sorted({(cluster, job_id) for cluster, job_id in connection.execute(query)}):
            lookups.setdefault(key, JobLookup(*key, new))
    return list(lookups.values())


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
                _store_running(connection, job, fitting, now)
                _refresh(connection, job, fitting, now)
                note_changed_jobs(connection, [(job.cluster, job.job_id)])
    return StoredFacts(linked, frozenset(name for name in others if name))


def _link(connection: Connection, job: JobLookup, runs: Sequence[JobFacts], now: float) -> int:
    query = select(records.c.id, records.c.restart_count, records.c.start).where(
        records.c.cluster == job.cluster, records.c.job_id == job.job_id, records.c.job.is_(None)
    )
    rows = connection.execute(query.order_by(records.c.id)).all()
    linked = 0
    for row_id, restart_count, start in rows:
        facts = choose_run(runs, restart_count, start)
        if facts is None or (facts.start is None and not _is_settled(facts, now)):
            continue
        key = _store_facts(connection, job.cluster, facts, now)
        names = {"account": facts.account, "partition": facts.partition, "user": facts.user}
        changed = {name: value for name, value in names.items() if value is not None}
        connection.execute(update(records).where(records.c.id == row_id).values(job=key, **changed))
        linked += 1
    return linked


def _store_running(connection: Connection, job: JobLookup, runs: Sequence[JobFacts], now: float) -> None:
    """Store the facts of runs that used energy in a period, but that have no record yet."""
    unknown = usage_tables.usage_unknown_jobs.c
    spans = connection.execute(
        select(unknown.start, unknown.end).where(unknown.cluster == job.cluster, unknown.job_id == job.job_id)
    ).all()
    for facts in runs:
        if facts.start is not None and any(overlaps(facts, start, end) for start, end in spans):
            _store_facts(connection, job.cluster, facts, now)


def _refresh(connection: Connection, job: JobLookup, runs: Sequence[JobFacts], now: float) -> None:
    query = select(jobs.c.submit).where(
        jobs.c.cluster == job.cluster, jobs.c.job_id == job.job_id, _UNFINISHED
    )
    rows = connection.execute(query).all()
    by_submit = {facts.submit or 0.0: facts for facts in runs}
    for (submit,) in rows:
        if submit in by_submit:
            _store_facts(connection, job.cluster, by_submit[submit], now)


def _store_facts(connection: Connection, cluster: str, facts: JobFacts, now: float) -> int:
    key = {"cluster": cluster, "job_id": facts.job_id, "submit": facts.submit or 0.0}
    values = {name: getattr(facts, name) for name in _COLUMNS}
    values |= {"finished": facts.finished and _is_settled(facts, now), "updated": now}
    same = and_(*(jobs.c[name] == value for name, value in key.items()))
    row = connection.execute(select(jobs.c.id).where(same)).scalar()
    if row is None:
        new = connection.execute(insert(jobs).values(**key, **values)).inserted_primary_key
        assert new is not None
        return int(new[0])
    connection.execute(update(jobs).where(jobs.c.id == row).values(**values))
    return int(row)


def _is_settled(facts: JobFacts, now: float) -> bool:
    return facts.end is None or now - facts.end >= SETTLED_AFTER_S
