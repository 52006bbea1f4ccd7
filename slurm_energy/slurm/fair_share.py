"""Shares of accounts and users as the site gave them out with sacctmgr; nothing about what they have used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.command_output import FixedWidth

_COLUMNS: Final = FixedWidth(
    {**dict.fromkeys(("Account", "User", "Partition", "ParentName"), 256), "Share": 24}
)
_PARENT: Final = "parent"


@dataclass(frozen=True, slots=True)
class Association:
    """One row of `sacctmgr show assoc`.

    Attributes:
        account, user, partition, parent: names, empty where none; `user` is empty for an account itself,
            `parent` for all but accounts below another.
        shares: raw shares; None: `parent`, it has no share of its own and draws on its account's.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    shares: int | None = 1


@dataclass(frozen=True, slots=True)
class FairShare:
    """What an account or user is entitled to.

    Attributes:
        raw: shares as sacctmgr shows them; None: `parent`.
        norm: part of the whole cluster, 0 to 1: the product of the parts of each level, from the root down.
            Slurm's own NormShares is that under classic fairshare, and under Fair Tree the last factor alone.
    """

    raw: int | None
    norm: float


@dataclass(frozen=True, slots=True)
class ShareTree:
    """Shares by account and by (account, user), and the account above each account that has one."""

    accounts: Mapping[str, FairShare] = field(default_factory=dict)
    users: Mapping[tuple[str, str], FairShare] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)

    def ancestors(self, account: str) -> list[str]:
        """Return an account and those above it, the root last."""
        found = [account]
        while (above := self.parents.get(found[-1], "")) and above not in found:
            found.append(above)
        return found


def read_shares(run: Runner = run_command, cluster: str = "") -> ShareTree:
    """Ask slurmdbd for the shares of a cluster; slurmctld is not asked.

    Args:
        run: what executes a command.
        cluster: its name in slurm.conf; empty: sacctmgr shows those of all clusters together.

    Raises:
        UnavailableError: no slurmdbd, or an answer that cannot be read.
    """
    where = [f"cluster={cluster}"] if cluster else []
    command = _COLUMNS.command(["sacctmgr", "-n", "show", "assoc", *where, f"format={_COLUMNS.format}"])
    return normalise_shares(_associations(run(command)))


class ShareCache:
    """Reads shares now and then: they change when an administrator changes them.

    Args:
        read: gives them, or raises UnavailableError.
        max_age_s: seconds after which they are read again.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        read: Callable[[], ShareTree],
        max_age_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._max_age_s = max_age_s
        self._clock = clock
        self._next_s = self._soonest_s = -float("inf")
        self._known = ShareTree()
        self._missing: frozenset[tuple[str, str]] = frozenset()
        self._wait_s = max_age_s / 60

    def current(self, wanted: Iterable[tuple[str, str]] = ()) -> ShareTree:
        """Return the shares, at most `max_age_s` old.

        Args:
            wanted: pairs of account and user; one that is not known, as of a new user, lets all be read again
                after a sixtieth of `max_age_s`, and after twice as long each time the same ones are missing.

        Raises:
            UnavailableError: they could not be read again; until the next try, a tenth of `max_age_s` later,
                the last known ones are returned, none at first.
        """
        now_s, pairs = self._clock(), frozenset(wanted)
        if now_s >= self._next_s or (now_s >= self._soonest_s and not self._knows(pairs)):
            self._next_s = self._soonest_s = now_s + self._max_age_s / 10
            self._known = self._read()
            missing = pairs - self._known.users.keys()
            again = bool(missing) and missing == self._missing
            self._wait_s = 2 * self._wait_s if again else self._max_age_s / 60
            self._missing = missing
            self._next_s, self._soonest_s = self._clock() + self._max_age_s, now_s + self._wait_s
        return self._known

    def refresh(self) -> None:
        """Read again at the next call, as after a change with sacctmgr."""
        self._next_s = -float("inf")

    def _knows(self, pairs: frozenset[tuple[str, str]]) -> bool:
        return pairs <= self._known.users.keys()


def normalise_shares(associations: Iterable[Association]) -> ShareTree:
    """Return each association's part of the cluster.

    On every level shares count in relation to the sum of all that stand beside each other, users and
    accounts alike. What has `parent` for its share has its account's part, and what is below it competes
    one level up. Source: slurm.schedmd.com/classic_fair_share.html, "Normalized Shares".
    """
    rows = list(associations)
    tree = _Tree(rows)
    accounts: dict[str, FairShare] = {}
    users: dict[tuple[str, str], FairShare] = {}
    for row, norm in tree.parts():
        if not row.user:
            accounts[row.account] = FairShare(row.shares, norm)
        elif (row.account, row.user) in users and row.shares is not None:
            before = users[row.account, row.user]
            users[row.account, row.user] = FairShare((before.raw or 0) + row.shares, before.norm + norm)
        else:
            users.setdefault((row.account, row.user), FairShare(row.shares, norm))
    parents = {row.account: row.parent for row in rows if not row.user and row.parent}
    return ShareTree(accounts, users, parents)


class _Tree:
    """Associations by what they are below of; a loop, which Slurm does not allow, is cut."""

    def __init__(self, rows: list[Association]) -> None:
        self._below: dict[str, list[Association]] = {}
        names = {row.account for row in rows if not row.user}
        self._tops = [row for row in rows if not row.user and row.parent not in names]
        for row in rows:
            above = row.account if row.user else row.parent
            self._below.setdefault(above, []).append(row)

    def parts(self) -> list[tuple[Association, float]]:
        """Return every row that hangs on a root, with its part."""
        found = [(row, 1.0) for row in self._tops]
        seen = {row.account for row in self._tops}
        for row, norm in found:  # grows while it is walked
            if row.user or (row.shares is None and row not in self._tops):
                continue  # what is below a `parent` was found with its level
            level = self._level(row.account, seen)
            total = sum(below.shares for below in level if below.shares is not None)
            for below in level:
                own = norm if below.shares is None else norm * below.shares / total if total else 0.0
                found.append((below, own))
        return found

    def _level(self, account: str, seen: set[str]) -> list[Association]:
        """Return what competes below an account, through accounts that have no share of their own."""
        level = []
        for row in self._below.get(account, []):
            if not row.user:
                if row.account in seen:
                    continue
                seen.add(row.account)
            level.append(row)
            if not row.user and row.shares is None:
                level += self._level(row.account, seen)
        return level


def _associations(output: str) -> Iterable[Association]:
    for account, user, partition, parent, shares in _COLUMNS.rows(output, "sacctmgr"):
        if shares != _PARENT and not (shares.isascii() and shares.isdecimal() and len(shares) <= 10):
            raise UnavailableError("sacctmgr", f"'{shown(shares)}' is not a number of shares")
        yield Association(account, user, partition, parent, None if shares == _PARENT else int(shares))
