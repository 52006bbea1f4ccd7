"""Past arrivals of jobs, for forecasts of the resources that future jobs will need.

The arrivals are read from the stored data about jobs, which come from Slurm's accounting. The
forecasts are about CPUs and GPUs.
"""

from __future__ import annotations

import json
import math
from typing import Final, NamedTuple

from sqlalchemy import Connection, and_, func, select

from slurm_energy.accounting.decisions import DEFER
from slurm_energy.accounting.schema.tables import decisions as _decisions
from slurm_energy.accounting.schema.tables import jobs as _jobs

MAX_ARRIVALS: Final = 5000
_SAME_SUBMIT_S: Final = 1.5  # sacct and slurmctld round to seconds


class PastArrival(NamedTuple):
    """A job that has run, with its time of submission and its resources.

    Attributes:
        partition: Slurm partition; an empty value means unknown.
        submit_s: time of submission in Unix seconds.
        elapsed_s: run time in seconds.
        allocated: list of allocated TRES; an empty value means unknown.
        slack_s: slack of a job that was deferred, in seconds: the time by which its start could be
            delayed. 0 for other jobs.
    """

    partition: str
    submit_s: float
    elapsed_s: float
    allocated: str
    slack_s: float


def read_arrivals(connection: Connection, cluster: str, since: float) -> list[PastArrival]:
    """Return the started jobs that were submitted since a given time, in order of submission.

    At most the newest `MAX_ARRIVALS` rows are read.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        since: earliest time of submission in Unix seconds.
    """
    was_deferred = and_(
        _decisions.c.cluster == _jobs.c.cluster,
        _decisions.c.job_id == _jobs.c.job_id,
        func.abs(_decisions.c.submit - _jobs.c.submit) < _SAME_SUBMIT_S,
        _decisions.c.kind == DEFER,
    )
    query = (
        select(
            *(_jobs.c.id, _jobs.c.partition, _jobs.c.submit, _jobs.c.elapsed_s, _jobs.c.allocated),
            _decisions.c.details,
        )
        .select_from(_jobs)
        .join(_decisions, was_deferred, isouter=True)
        .where(_jobs.c.cluster == cluster, _jobs.c.submit >= since, _jobs.c.elapsed_s > 0)
        .order_by(_jobs.c.submit.desc(), _jobs.c.id)
        .limit(MAX_ARRIVALS)
    )
    rows = {row.id: row for row in connection.execute(query)}  # a job may have several decisions
    return [
        PastArrival(
            *(row.partition or "", row.submit, row.elapsed_s, row.allocated or ""),
            _slack_s(row.details),
        )
        for row in reversed(rows.values())
    ]


def _slack_s(details: str | None) -> float:
    if details is None:
        return 0.0
    facts = json.loads(details)
    times = [facts.get(name) for name in ("latest_start_s", "eligible_s")]
    if not all(isinstance(time, (int, float)) and not isinstance(time, bool) for time in times):
        return 0.0
    slack_s = float(times[0]) - float(times[1])
    return slack_s if math.isfinite(slack_s) and slack_s > 0 else 0.0
