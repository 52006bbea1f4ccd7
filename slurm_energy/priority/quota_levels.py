"""Rules for the use of quotas by users and accounts.

The module computes calendar periods and the levels of use (warning, hold). It chooses the quota that limits
a user's jobs. The module does not need numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from enum import IntEnum
from typing import Any, Final

from slurm_energy.accounting.quotas import Quota, QuotaPeriod
from slurm_energy.grid.amount_text import percent_text, resource_text

_MONTHS: Final = {QuotaPeriod.MONTH: 1, QuotaPeriod.QUARTER: 3, QuotaPeriod.YEAR: 12}


class QuotaLevel(IntEnum):
    """Level that the use of a quota has reached.

    The use is within the warning level, over the warning level, or over the hold level. Jobs of a quota
    over the warning level are ranked after other jobs. Jobs of a quota over the hold level are ranked
    last.
    """

    WITHIN = 0
    WARNING = 1
    HOLD = 2


LEVEL_NAMES: Final = ("within", "warning", "hold")


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A quota with its use in the current period.

    Attributes:
        quota: the quota as configured.
        start: start of the current period in Unix time.
        end: end of the current period in Unix time.
        used: amount used, in the unit of the quota; None means that it is unknown, so that the quota has no
            effect.
        basis: for cost and carbon, a text with provider, zone, resolution and PUE; empty for energy.
        accounts: the quota's account and all accounts below it.
    """

    quota: Quota
    start: float
    end: float
    used: float | None
    basis: str = ""
    accounts: frozenset[str] = frozenset()

    @property
    def percent(self) -> float | None:
        """Used amount in percent of the granted amount; None means unknown."""
        return None if self.used is None else 100.0 * self.used / self.quota.amount

    @property
    def level(self) -> QuotaLevel:
        """Level of the quota that the use has reached, such as warning or hold.

        Unknown use counts as within the quota.
        """
        percent, quota = self.percent, self.quota
        if percent is None:
            return QuotaLevel.WITHIN
        if quota.hold_percent is not None and percent >= quota.hold_percent:
            return QuotaLevel.HOLD
        if quota.warn_percent is not None and percent >= quota.warn_percent:
            return QuotaLevel.WARNING
        return QuotaLevel.WITHIN

    def covers(self, account: str, user: str) -> bool:
        """Return whether jobs of a user in an account count towards the quota."""
        return account in self.accounts and self.quota.user in ("", user)

    @property
    def sentence(self) -> str:
        """Sentence that states how much of the quota is used.

        Example: `account physics has used 93 % of its energy quota of 500 kWh for this month`.
        """
        quota = self.quota
        percent = percent_text(self.percent) or "an unknown part"
        amount = resource_text(quota.resource, quota.amount, quota.unit)
        when = "its period" if quota.period is QuotaPeriod.CUSTOM else f"this {quota.period}"
        return f"{quota.subject} has used {percent} of its {quota.resource} quota of {amount} for {when}"

    def to_json(self) -> dict[str, Any]:
        """Return the use as a JSON object."""
        quota = self.quota
        return {
            "account": quota.account,
            "user": quota.user or None,
            "resource": str(quota.resource),
            "period": str(quota.period),
            "start": self.start,
            "end": self.end,
            "amount": quota.amount,
            "used": self.used,
            "unit": quota.unit,
            "used_percent": self.percent,
            "warn_percent": quota.warn_percent,
            "hold_percent": quota.hold_percent,
            "level": LEVEL_NAMES[self.level],
            "basis": self.basis,
            "set_by": quota.actor,
            "set_unix_s": quota.time,
            "reason": quota.reason,
        }


@dataclass(frozen=True, slots=True)
class QuotaStandings:
    """How much of each quota is used at one time.

    Attributes:
        uses: the quotas, each with its use.
    """

    uses: tuple[QuotaUse, ...] = ()
    _known: dict[tuple[str, str], QuotaUse | None] = field(default_factory=dict, compare=False)

    def limiting(self, account: str, user: str) -> QuotaUse | None:
        """Return the quota that limits a user's jobs most; None if no quota is over a level.

        A quota over its hold level limits more than a quota that is only over its warning level. Of several
        quotas at the same level, the one with the highest percentage of use counts.
        """
        key = (account, user)
        if key not in self._known:
            over = [use for use in self.uses if use.level and use.covers(account, user)]
            self._known[key] = max(over, key=lambda use: (use.level, use.percent or 0.0), default=None)
        return self._known[key]

    @property
    def has_holds(self) -> bool:
        """Whether the use of any quota has reached its hold level, from which on jobs are held."""
        return any(use.level is QuotaLevel.HOLD for use in self.uses)


def period_window(quota: Quota, now: float, zone: tzinfo | None) -> tuple[float, float] | None:
    """Return start and end (Unix time) of the period of a quota that contains a time.

    Return None if no period of the quota contains the time.

    Args:
        quota: the quota whose period is computed.
        now: the time, in Unix time.
        zone: time zone of calendar periods; None means the time zone of this host.
    """
    months = _MONTHS.get(quota.period)
    if months is None:
        if quota.start is None or quota.end is None or not quota.start <= now < quota.end:
            return None
        return quota.start, quota.end
    today = datetime.fromtimestamp(now, zone)
    first = (today.month - 1) // months * months
    start = datetime(today.year, first + 1, 1, tzinfo=zone)
    after = first + months
    end = datetime(today.year + after // 12, after % 12 + 1, 1, tzinfo=zone)
    return start.timestamp(), end.timestamp()


def accounts_below(account: str, parents: Mapping[str, str]) -> frozenset[str]:
    """Return an account and all accounts below it.

    Args:
        account: the account.
        parents: parent of each account; empty if the parents are unknown.
    """
    names = {account}
    while more := {name for name, parent in parents.items() if parent in names} - names:
        names |= more
    return frozenset(names)
