"""Storage of job facts (data about a job from Slurm's accounting) in the database.

The module selects the jobs to look up in Slurm. It stores the results and links energy records to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, RowMapping, Select, bindparam, insert, select, text, update

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema import usage_tables
from slurm_energy.accounting.schema.tables import jobs, records
from slurm_energy.accounting.usage.usage_rollup import note_changed_jobs
from slurm_energy.slurm.job_accounting import JobFacts, choose_run, overlaps

_COLUMNS: Final = (
    *("display_id", "name", "account", "partition", "user", "state", "start", "end", "elapsed_s", "nodes"),
    *("array_job_id", "array_task_id", "het_job_id", "het_offset", "time_limit_s", "requested"),
    *("allocated", "qos", "exit_code", "step_exit_code"),
)
"""Columns of the table `jobs` whose names are those of attributes of `JobFacts`."""
_CHUNK: Final = 500  # values in a condition
_UNFINISHED: Final = text("NOT finished")  # as in the condition of the index
SETTLED_AFTER_S = 10.0
"""Delay after the end of a job, in seconds, after which the job's facts count as final.

slurmdbd may receive the end of a short job before the job's start and array task. Until slurmdbd has received
all three, it shows the job with the name `allocation`.
"""


class JobLookup(NamedTuple):
    """A job about which Slurm's accounting must be queried.

    Attributes:
        cluster: Slurm's ClusterName.
        job_id: Slurm's job id.
        new: True if the database has records or energy of the job, but no data from Slurm's accounting yet.
            False if it has such data, but the data is not final.
    """

    cluster: str
    job_id: int
    new: bool


class StoredFacts(NamedTuple):
    """Result of storing facts about jobs from Slurm's accounting.

    Attributes:
        linked: number of energy records that were linked to facts.
        other_clusters: cluster names in Slurm's accounting that differ from the cluster name in the records.
    """

    linked: int
    other_clusters: frozenset[str]


def pending_lookups(connection: Connection, since: float) -> list[JobLookup]:
    """Return the jobs that must be looked up in Slurm's accounting.

    The accounting supplies facts about a job, such as its end. There are two kinds of jobs. The first
    kind has records or energy periods, but no facts. The second kind has facts that are not final.

    Args:
        connection: connection to the database.
        since: Unix seconds. A job without facts is left out if its records arrived before this time. A
            job with facts is left out if its facts last changed before this time.
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
    """Store data about jobs from Slurm's accounting, and link the jobs' energy records to these data.

    Both happen in one transaction.

    Args:
        connection: connection of the writing thread.
        facts_by_id: data about each run of the jobs, by job id, from
            `slurm.job_accounting.read_job_facts`.
        jobs: the jobs that were looked up.
        now: current time, Unix seconds.
    """
    linked, others, changed = 0, set(), []
    with transaction(connection):
        writer = _FactsWriter(connection, jobs, now)
        for job in jobs:
            runs = facts_by_id.get(job.job_id, ())
            fitting = [facts for facts in runs if facts.cluster in (None, job.cluster)]
            others |= {facts.cluster for facts in runs if facts.cluster not in (None, job.cluster)}
            if fitting and writer.store(job, fitting):
                changed.append((job.cluster, job.job_id))
        linked = writer.linked
        note_changed_jobs(connection, changed)
    return StoredFacts(linked, frozenset(name for name in others if name))


_JobKey = tuple[str, int]
_STORED: Final = select(
    *(jobs.c[name] for name in ("id", "cluster", "job_id", "submit", "finished", "updated", *_COLUMNS))
)
_UNLINKED: Final = select(
    *(records.c[name] for name in ("id", "cluster", "job_id", "restart_count", "start"))
).where(records.c.job.is_(None))
_SPANS: Final = select(
    *(usage_tables.usage_unknown_jobs.c[name] for name in ("cluster", "job_id", "start", "end"))
)
_INSERT: Final = insert(jobs)
_UPDATE: Final = update(jobs).where(jobs.c.id == bindparam("row"))
_LINK: Final = update(records).where(records.c.id == bindparam("row"))


class _FactsWriter:
    """Writer of job facts (data about jobs from Slurm's accounting) to the database.

    Only facts that differ from the stored facts are written. The constructor reads all stored facts of
    the jobs at once.

    Args:
        connection: connection in a transaction of the writing thread.
        jobs: the jobs that may be stored.
        now: current time, Unix seconds.

    Attributes:
        linked: number of records that were linked to facts.
    """

    def __init__(self, connection: Connection, jobs: Sequence[JobLookup], now: float) -> None:
        self._connection, self._now = connection, now
        self._stored: dict[_JobKey, dict[float, dict[str, Any]]] = {}
        for (cluster, job_id), rows in _rows_by_job(connection, _STORED, jobs).items():
            self._stored[cluster, job_id] = {row["submit"]: dict(row) for row in rows}
        self._unlinked = _rows_by_job(connection, _UNLINKED.order_by(records.c.id), jobs)
        self._spans = _rows_by_job(connection, _SPANS, jobs)
        self.linked = 0

    def store(self, job: JobLookup, runs: Sequence[JobFacts]) -> bool:
        """Store Slurm's facts about the runs of a job, and link the job's energy records to these runs.

        Return whether anything changed.
        """
        key = (job.cluster, job.job_id)
        unfinished = {submit for submit, row in self._stored.get(key, {}).items() if not row["finished"]}
        spans = self._spans.get(key, ())
        changed = self._link(key, runs)
        for facts in runs:
            is_used = facts.start is not None and any(overlaps(facts, s["start"], s["end"]) for s in spans)
            if is_used or (facts.submit or 0.0) in unfinished:
                changed = self._write(job.cluster, facts)[1] or changed
        return changed

    def _link(self, key: _JobKey, runs: Sequence[JobFacts]) -> bool:
        linked = self.linked
        for record in self._unlinked.get(key, ()):
            facts = choose_run(runs, record["restart_count"], record["start"])
            if facts is None or (facts.start is None and not _is_settled(facts, self._now)):
                continue
            row, _ = self._write(key[0], facts, has_new_record=True)
            names = {"account": facts.account, "partition": facts.partition, "user": facts.user}
            changed = {name: value for name, value in names.items() if value is not None}
            self._connection.execute(_LINK, {"row": record["id"], "job": row, **changed})
            self.linked += 1
        return self.linked > linked

    def _write(self, cluster: str, facts: JobFacts, *, has_new_record: bool = False) -> tuple[int, bool]:
        """Store facts unless they are stored already. Return the row id and whether the row changed.

        The column `updated` is set whenever the facts change. If the facts are unchanged, the column is
        renewed in two cases, at most once per transaction. In the first case, the job still runs, so that the
        column states the age of its facts. In the second case, a record was linked to the job. Readers that
        follow the order of this column then check again whether the job is complete.
        """
        submit = facts.submit or 0.0
        stored = self._stored.setdefault((cluster, facts.job_id), {})
        values = {name: getattr(facts, name) for name in _COLUMNS}
        values["finished"] = facts.finished and _is_settled(facts, self._now)
        row_values = {**values, "updated": self._now}
        row = stored.get(submit)
        if row is None:
            key = {"cluster": cluster, "job_id": facts.job_id, "submit": submit}
            new = self._connection.execute(_INSERT, {**key, **row_values})
            assert new.inserted_primary_key is not None
            stored[submit] = {**row_values, "id": int(new.inserted_primary_key[0])}
            return stored[submit]["id"], True
        must_renew = (facts.end is None or has_new_record) and row["updated"] != self._now
        if not must_renew and all(row[name] == value for name, value in values.items()):
            return row["id"], False
        self._connection.execute(_UPDATE, {"row": row["id"], **row_values})
        row.update(row_values)
        return row["id"], True


def _rows_by_job(
    connection: Connection, statement: Select[Any], jobs: Sequence[JobLookup]
) -> dict[_JobKey, list[RowMapping]]:
    """Run a database query for the given jobs, and return the rows by (cluster, job id)."""
    columns = statement.selected_columns
    clusters, ids = sorted({job.cluster for job in jobs}), sorted({job.job_id for job in jobs})
    rows: dict[_JobKey, list[RowMapping]] = {}
    for first in range(0, len(ids), _CHUNK):
        chosen = statement.where(
            columns["cluster"].in_(clusters), columns["job_id"].in_(ids[first : first + _CHUNK])
        )
        for row in connection.execute(chosen).mappings():
            rows.setdefault((row["cluster"], row["job_id"]), []).append(row)
    return rows


def _is_settled(facts: JobFacts, now: float) -> bool:
    return facts.end is None or now - facts.end >= SETTLED_AFTER_S
