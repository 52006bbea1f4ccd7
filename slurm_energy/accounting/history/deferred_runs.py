"""Database queries about the effect of deferral.

The queries return the runs of finished deferred jobs, and the waiting times of jobs that were not deferred.
Both are computed from the stored facts of jobs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select

from slurm_energy.accounting.decisions import DEFER
from slurm_energy.accounting.records.record_selection import Visibility
from slurm_energy.accounting.schema.tables import decisions as _decisions
from slurm_energy.accounting.schema.tables import jobs as _jobs
from slurm_energy.accounting.schema.tables import records as _records

MAX_JOBS: Final = 100_000
MAX_WAITS: Final = 500_000
_SAME_SUBMIT_S: Final = 1.5  # sacct and slurmctld round to seconds
_DECIDED = and_(
    _decisions.c.cluster == _jobs.c.cluster,
    _decisions.c.job_id == _jobs.c.job_id,
    func.abs(_decisions.c.submit - _jobs.c.submit) < _SAME_SUBMIT_S,
    _decisions.c.kind == DEFER,
)


@dataclass(frozen=True, slots=True)
class DeferredRun:
    """One run of a finished job that was deferred (started later to use cheaper or cleaner power).

    All times are Unix seconds. A requeued job has several runs.

    Attributes:
        job: row id of the job in the database.
        user, account, partition: names; an empty text means unknown.
        eligible_s: time at which the job could have started without deferral.
        start_s, end_s: start and end of the run.
        energy_joules: energy of the run on all nodes; NaN means unknown.
    """

    job: int
    user: str
    account: str
    partition: str
    eligible_s: float
    start_s: float
    end_s: float
    energy_joules: float


def read_deferred_runs(
    connection: Connection,
    cluster: str,
    start: float,
    end: float,
    visible: Visibility | None,
    names: Sequence[Sequence[str]] = ((), (), ()),
) -> list[DeferredRun]:
    """Return the runs of deferred jobs that ended in a time window.

    The runs are in the order of job id and start.

    At most `MAX_JOBS` rows of energy records are read, the newest first.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        start: start of the window in Unix seconds.
        end: end of the window.
        visible: restriction to the jobs that the caller may see; None means no restriction.
        names: accounts, users and partitions whose jobs are returned; an empty value means no restriction.
    """
    own = (_records.c.account, _records.c.user, _records.c.partition)
    conditions: list[ColumnElement[bool]] = [
        column.in_(list(wanted)) for column, wanted in zip(own, names, strict=True) if wanted
    ]
    if visible is not None:
        sees = [_records.c.uid == visible.uid]
        if visible.accounts:
            sees.append(_records.c.account.in_(sorted(visible.accounts)))
        conditions.append(or_(*sees))
    query = (
        select(
            *(_jobs.c.id, _records.c.id.label("record"), _records.c.user, _records.c.account),
            *(
                _records.c.partition,
                _records.c.restart_count,
                _records.c.start,
                _records.c.end,
                _records.c.energy_joules,
            ),
            *(_decisions.c.time, _decisions.c.details),
        )
        .select_from(_jobs)
        .join(_decisions, _DECIDED)
        .join(_records, and_(_records.c.job == _jobs.c.id, _records.c.step == ""))
        .where(_jobs.c.cluster == cluster, _jobs.c.finished, _jobs.c.end >= start, _jobs.c.end < end)
        .where(*conditions)
        .order_by(_jobs.c.end.desc(), _jobs.c.id, _records.c.restart_count, _decisions.c.time)
        .limit(MAX_JOBS)
    )
    return _runs(connection.execute(query).all())


def _runs(rows: Sequence[Any]) -> list[DeferredRun]:
    """Return the runs of deferred jobs from the rows of a database query.

    Each row combines the record of one node with one decision about the job.
    """
    by_run: dict[tuple[int, int], dict[int, Any]] = {}
    eligible_s: dict[int, float] = {}
    for row in rows:
        # A job has several decisions if it was held again after a release.
        by_run.setdefault((row.id, row.restart_count), {}).setdefault(row.record, row)
        known = json.loads(row.details).get("eligible_s")
        if isinstance(known, (int, float)) and not isinstance(known, bool) and math.isfinite(known):
            eligible_s.setdefault(row.id, float(known))
    runs = []
    for (job, _), by_record in sorted(by_run.items()):
        if job not in eligible_s:
            continue
        records = list(by_record.values())
        joules = [row.energy_joules for row in records]
        runs.append(
            DeferredRun(
                *(job, records[0].user or "", records[0].account or "", records[0].partition or ""),
                *(eligible_s[job], min(row.start for row in records), max(row.end for row in records)),
                math.nan if None in joules else math.fsum(joules),
            )
        )
    return runs


def read_waits(
    connection: Connection, cluster: str, start: float, end: float
) -> list[tuple[str, float, float]]:
    """Return the waits of the started jobs that were not deferred.

    Each entry is (partition, submission time in Unix seconds, waiting time in seconds).

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        start: earliest submission time of the jobs, Unix seconds.
        end: latest submission time of the jobs, Unix seconds.
    """
    query = (
        select(_jobs.c.partition, _jobs.c.submit, _jobs.c.start)
        .where(_jobs.c.cluster == cluster, _jobs.c.submit >= start, _jobs.c.submit <= end)
        .where(_jobs.c.start >= _jobs.c.submit)
        .where(~exists().where(_DECIDED))
        .order_by(_jobs.c.submit.desc())
        .limit(MAX_WAITS)
    )
    return [(row[0] or "", row[1], row[2] - row[1]) for row in connection.execute(query)]
