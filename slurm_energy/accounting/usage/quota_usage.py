"""Sums of the energy that accounts and users have used, for comparison with their quotas."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection, func, select

from slurm_energy.accounting.schema.usage_tables import usage_groups, usage_sums
from slurm_energy.accounting.usage.groups import JOB
from slurm_energy.accounting.usage.usage_rollup import longest_period_s
from slurm_energy.grid.factor import EnergyPart

_JOULES_PER_MICROJOULE: Final = 1e-6


def energy_parts(
    connection: Connection, cluster: str, accounts: Collection[str], user: str, start: float, end: float
) -> list[EnergyPart]:
    """Return the energy that jobs used in a time range, as one amount for each energy period.

    An energy period is a time span for which nodes report their energy. A period may lie only partly
    between `start` and `end`. Its energy then counts in proportion to the part inside. A running job is
    included up to its last period.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        accounts: accounts of the jobs.
        user: login name; an empty value means all users.
        start: Unix time from which energy counts.
        end: Unix time up to which energy counts.
    """
    sums, groups = usage_sums.c, usage_groups.c
    members = select(groups.id).where(
        groups.cluster == cluster, groups.kind == JOB, groups.account.in_(sorted(accounts))
    )
    if user:
        members = members.where(groups.user == user)
    query = (
        select(sums.start, sums.end, func.sum(sums.total_uj))
        .where(
            sums.usage_group.in_(members),
            sums.start > start - longest_period_s(connection),
            sums.start < end,
            sums.end > start,
        )
        .group_by(sums.start, sums.end)
        .order_by(sums.start, sums.end)
    )
    return [_inside(*row, start, end) for row in connection.execute(query)]


def accounts_of(connection: Connection, cluster: str, user: str) -> set[str]:
    """Return the accounts in which jobs of a user have used energy."""
    groups = usage_groups.c
    query = (
        select(groups.account)
        .distinct()
        .where(groups.cluster == cluster, groups.kind == JOB, groups.user == user, groups.account != "")
    )
    return set(connection.execute(query).scalars())


def _inside(begin: int, until: int, microjoules: int, start: float, end: float) -> EnergyPart:
    joules = int(microjoules) * _JOULES_PER_MICROJOULE
    first, last = max(float(begin), start), min(float(until), end)
    return first, last, joules * (last - first) / (until - begin)
