"""Quotas of accounts and users in the database, with an audit trail of changes.

A quota is an allowance of energy, cost or carbon for a period.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, and_, select
from sqlalchemy.sql import ColumnElement

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema.tables import quota_changes, quotas


class QuotaResource(StrEnum):
    """Quantity that a quota limits: energy (joules), cost (currency) or carbon (g of CO2 equivalents)."""

    ENERGY = "energy"
    COST = "cost"
    CARBON = "carbon"


class QuotaPeriod(StrEnum):
    """Time for which the amount of a quota is granted: a calendar period, or a fixed start and end."""

    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Quota:
    """An allowance of an account, or of a user within an account.

    Attributes:
        account: Slurm account. Jobs in the accounts below it count, too.
        user: login name; an empty value means all users of the account together.
        resource: quantity that the quota limits.
        period: time for which the amount is granted.
        amount: granted amount. The unit is joules, a unit of the currency, or grams of CO2 equivalents.
        unit: unit of the amount: `J`, the currency, or `g`.
        warn_percent: warning level in percent of the amount. When the use reaches this level, the jobs of the
            account or user rank after other jobs. None means never.
        hold_percent: hold level in percent of the amount. When the use reaches this level, these jobs are
            held or rank last. None means never.
        start: start of a custom period in Unix time; None means a calendar period.
        end: end of a custom period; None means a calendar period.
        actor: administrator who set the quota.
        time: Unix time at which the quota was set.
        reason: text of the administrator; may be empty.
    """

    account: str
    user: str
    resource: QuotaResource
    period: QuotaPeriod
    amount: float
    unit: str
    warn_percent: float | None = None
    hold_percent: float | None = None
    start: float | None = None
    end: float | None = None
    actor: str = ""
    time: float = 0.0
    reason: str = ""

    @property
    def subject(self) -> str:
        """Text for messages that names the account, or the user within the account."""
        return f"user {self.user} in account {self.account}" if self.user else f"account {self.account}"


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A change of a quota, for the audit trail.

    Attributes:
        time: Unix time.
        actor: administrator.
        account: account of the quota.
        user: user of the quota; an empty value means the whole account.
        why: the change in one line.
    """

    time: float
    actor: str
    account: str
    user: str
    why: str


def read_quotas(connection: Connection, cluster: str) -> list[Quota]:
    """Return all quotas of a cluster, in the order of account, user, resource and period."""
    table = quotas
    rows = connection.execute(
        select(table)
        .where(table.c.cluster == cluster)
        .order_by(table.c.account, table.c.user, table.c.resource, table.c.period)
    ).mappings()
    return [
        Quota(
            row["account"],
            row["user"],
            QuotaResource(row["resource"]),
            QuotaPeriod(row["period"]),
            row["amount"],
            row["unit"],
            row["warn_percent"],
            row["hold_percent"],
            row["start"],
            row["end"],
            row["actor"],
            row["time"],
            row["reason"],
        )
        for row in rows
    ]


def set_quota(connection: Connection, cluster: str, quota: Quota, why: str) -> None:
    """Store a quota and add the change to the audit trail.

    The quota replaces a stored quota with the same account, user, resource and period.

    Args:
        connection: connection of the writing thread.
        cluster: Slurm's ClusterName.
        quota: the quota to store.
        why: the change in one line, for the audit trail.
    """
    with transaction(connection):
        connection.execute(quotas.delete().where(_same(cluster, quota)))
        connection.execute(
            quotas.insert().values(
                {
                    "cluster": cluster,
                    "account": quota.account,
                    "user": quota.user,
                    "resource": str(quota.resource),
                    "period": str(quota.period),
                    "start": quota.start,
                    "end": quota.end,
                    "amount": quota.amount,
                    "unit": quota.unit,
                    "warn_percent": quota.warn_percent,
                    "hold_percent": quota.hold_percent,
                    "actor": quota.actor,
                    "time": quota.time,
                    "reason": quota.reason,
                }
            )
        )
        change = QuotaChange(quota.time, quota.actor, quota.account, quota.user, why)
        _note_change(connection, cluster, change)


def remove_quota(connection: Connection, cluster: str, quota: Quota, change: QuotaChange) -> bool:
    """Delete a quota and add the change to the audit trail. Return whether the quota existed."""
    with transaction(connection):
        existed = bool(connection.execute(quotas.delete().where(_same(cluster, quota))).rowcount)
        if existed:
            _note_change(connection, cluster, change)
    return existed


def changes(
    connection: Connection, cluster: str, begin: float, end: float, accounts: Sequence[str] | None = None
) -> list[QuotaChange]:
    """Return the changes of quotas in a window of Unix time, oldest first.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        begin: start of the window.
        end: end of the window; changes at that time are not included.
        accounts: accounts whose changes to return; None means all.
    """
    table = quota_changes
    query = select(table).where(table.c.cluster == cluster, table.c.time >= begin, table.c.time < end)
    if accounts is not None:
        query = query.where(table.c.account.in_(accounts))
    rows = connection.execute(query.order_by(table.c.time, table.c.id)).mappings()
    return [QuotaChange(row["time"], row["actor"], row["account"], row["user"], row["why"]) for row in rows]


def _note_change(connection: Connection, cluster: str, change: QuotaChange) -> None:
    connection.execute(
        quota_changes.insert().values(
            {
                "cluster": cluster,
                "time": change.time,
                "actor": change.actor,
                "account": change.account,
                "user": change.user,
                "why": change.why,
            }
        )
    )


def _same(cluster: str, quota: Quota) -> ColumnElement[bool]:
    table = quotas
    return and_(
        table.c.cluster == cluster,
        table.c.account == quota.account,
        table.c.user == quota.user,
        table.c.resource == str(quota.resource),
        table.c.period == str(quota.period),
    )
