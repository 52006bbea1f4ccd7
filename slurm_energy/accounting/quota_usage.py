"""Energy of accounts and users over time, which counts towards quotas."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection, and_, func, select

from slurm_energy.accounting.tables import jobs, periods
from slurm_energy.grid.factor import EnergyPart

_JOULES_PER_MICROJOULE: Final = 1e-6
_JOB: Final = "job"


def energy_parts(
    connection: Connection, cluster: str, accounts: Collection[str], user: str, start: float, end: float
) -> list[EnergyPart]:
    """Return the energy of jobs by period of time, running jobs up to their last period included.

    The energy of a period at the edge of the window counts by the part of the period inside.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        accounts: accounts of the jobs.
        user: login name; empty: all users.
        start: start of the window in Unix time.
        end: end of the window.
    """
    later = jobs.alias("later")
    # A job id may be used again: the latest job of this id that was submitted before the period ended counts.
    latest = (
        select(func.max(later.c.submit))
        .where(
            later.c.cluster == periods.c.cluster,
            later.c.job_id == periods.c.job_id,
            later.c.submit < periods.c.end,
        )
        .scalar_subquery()
    )
    same = and_(
        jobs.c.cluster == periods.c.cluster, jobs.c.job_id == periods.c.job_id, jobs.c.submit == latest
    )
    query = (
        select(periods.c.start, periods.c.end, func.sum(periods.c.total_uj))
        .select_from(periods.join(jobs, same))
        .where(
            periods.c.cluster == cluster,
            periods.c.kind == _JOB,
            periods.c.start < end,
            periods.c.end > start,
            jobs.c.account.in_(sorted(accounts)),
        )
        .group_by(periods.c.start, periods.c.end)
        .order_by(periods.c.start, periods.c.end)
    )
    if user:
        query = query.where(jobs.c.user == user)
    return [_inside(*row, start, end) for row in connection.execute(query)]


def accounts_of(connection: Connection, cluster: str, user: str) -> set[str]:
    """Return the accounts in which a user has had jobs."""
    query = select(jobs.c.account).distinct().where(jobs.c.cluster == cluster, jobs.c.user == user)
    return {account for account in connection.execute(query).scalars() if account}


def _inside(begin: int, until: int, microjoules: int, start: float, end: float) -> EnergyPart:
    joules = int(microjoules) * _JOULES_PER_MICROJOULE
    first, last = max(float(begin), start), min(float(until), end)
    return first, last, joules * (last - first) / (until - begin)
