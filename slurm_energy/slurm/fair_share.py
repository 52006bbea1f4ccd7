"""Fair-share entitlements of Slurm accounts and users, as set with sacctmgr. Usage is not read here."""

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
    """An association of Slurm (a user or Slurm account): one row of `sacctmgr show assoc`.

    Attributes:
        account, user, partition, parent: names; an empty value means none. `user` is empty for the
            association of a Slurm account. `parent` is set only for a Slurm account below another Slurm
            account.
        shares: raw shares. None means `Share=parent`, so the association uses the shares of its account.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    shares: int | None = 1


@dataclass(frozen=True, slots=True)
class FairShare:
    """The fair-share entitlement of a Slurm account or user.

    Attributes:
        raw: shares as sacctmgr shows them; None means `Share=parent`.
        norm: fraction of the cluster, 0 to 1. It is the product of the fractions on all levels from the root
            down. Under classic fairshare `norm` equals Slurm's NormShares. Under Fair Tree, NormShares is
            only the last factor of this product.
    """

    raw: int | None
    norm: float


@dataclass(frozen=True, slots=True)
class ShareTree:
    """The fair shares of all Slurm accounts and users.

    An entitlement is the share of the cluster to which an account or user is entitled.

    Attributes:
        accounts: entitlement by name of the Slurm account.
        users: entitlement by pair (Slurm account, user).
        parents: name of the parent of each Slurm account that has one.
    """

    accounts: Mapping[str, FairShare] = field(default_factory=dict)
    users: Mapping[tuple[str, str], FairShare] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)

    def ancestors(self, account: str) -> list[str]:
        """Return a Slurm account and all Slurm accounts above it.

        The order is from the given account up to the root.
        """
        accounts = [account]
        while (above := self.parents.get(accounts[-1], "")) and above not in accounts:
            accounts.append(above)
        return accounts


def read_shares(run: Runner = run_command, cluster: str = "") -> ShareTree:
    """Read the fair shares of a cluster from slurmdbd. slurmctld receives no request.

    Args:
        run: function that executes a command and returns the output of the command.
        cluster: ClusterName; an empty value means that sacctmgr shows the associations of all clusters
            together.

    Raises:
        UnavailableError: slurmdbd does not answer, or the output cannot be parsed.
    """
    where = [f"cluster={cluster}"] if cluster else []
    command = _COLUMNS.command(["sacctmgr", "-n", "show", "assoc", *where, f"format={_COLUMNS.format}"])
    return normalise_shares(_associations(run(command)))


class ShareCache:
    """A cache of fair shares. Fair shares change only when an administrator changes them.

    Args:
        read: function that reads the shares; raises UnavailableError.
        max_age_s: seconds after which the shares are read again.
        clock: function that returns monotonic seconds.
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
        self._next_s = self._earliest_s = -float("inf")
        self._tree = ShareTree()
        self._missing: frozenset[tuple[str, str]] = frozenset()
        self._wait_s = max_age_s / 60

    def current(self, wanted: Iterable[tuple[str, str]] = ()) -> ShareTree:
        """Return fair shares that are at most `max_age_s` old.

        Args:
            wanted: pairs of Slurm account and user that the caller looks up. If a pair is unknown, for
                example because the user is new, the shares are read again after a sixtieth of `max_age_s`.
                This delay doubles each time the same pairs stay unknown.

        Raises:
            UnavailableError: the shares could not be read. The next attempt is made a tenth of `max_age_s`
                later. Until then, calls return the shares of the last successful read, or an empty tree if
                there was none.
        """
        now_s, pairs = self._clock(), frozenset(wanted)
        if now_s >= self._next_s or (now_s >= self._earliest_s and not self._contains(pairs)):
            self._next_s = self._earliest_s = now_s + self._max_age_s / 10
            self._tree = self._read()
            missing = pairs - self._tree.users.keys()
            again = bool(missing) and missing == self._missing
            self._wait_s = 2 * self._wait_s if again else self._max_age_s / 60
            self._missing = missing
            self._next_s, self._earliest_s = self._clock() + self._max_age_s, now_s + self._wait_s
        return self._tree

    def _contains(self, pairs: frozenset[tuple[str, str]]) -> bool:
        return pairs <= self._tree.users.keys()


def normalise_shares(associations: Iterable[Association]) -> ShareTree:
    """Return the tree of fair shares, with the fraction of the cluster for each association.

    An association is an account, or a user in an account. On each level of the tree, the shares of an
    association are divided by the sum of the shares of all its siblings and itself, users and accounts
    alike. An association with `Share=parent` has the fraction of its account; its children compete one level
    higher. Source: slurm.schedmd.com/classic_fair_share.html, "Normalized Shares".
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
    """Tree of associations. Cycles, which Slurm does not allow, are cut."""

    def __init__(self, rows: list[Association]) -> None:
        self._below: dict[str, list[Association]] = {}
        names = {row.account for row in rows if not row.user}
        self._tops = [row for row in rows if not row.user and row.parent not in names]
        for row in rows:
            above = row.account if row.user else row.parent
            self._below.setdefault(above, []).append(row)

    def parts(self) -> list[tuple[Association, float]]:
        """Return all associations of the tree of fair shares, from the root associations down.

        An association is a Slurm account, or a user in an account. Each association has its fraction of the
        cluster, from 0 to 1.
        """
        parts = [(row, 1.0) for row in self._tops]
        visited = {row.account for row in self._tops}
        for row, norm in parts:  # the list grows during the loop
            if row.user or (row.shares is None and row not in self._tops):
                continue  # the children of an association with `Share=parent` are already part of its level
            level = self._level(row.account, visited)
            total = sum(below.shares for below in level if below.shares is not None)
            for below in level:
                own = norm if below.shares is None else norm * below.shares / total if total else 0.0
                parts.append((below, own))
        return parts

    def _level(self, account: str, visited: set[str]) -> list[Association]:
        """Return the accounts and users that compete for the shares of a Slurm account.

        An account with `Share=parent` does not compete itself. The accounts and users below it are in the
        result, too.

        Args:
            account: name of the account.
            visited: names of the accounts already in the tree; the accounts of the result are added.
        """
        level = []
        for row in self._below.get(account, []):
            if not row.user:
                if row.account in visited:
                    continue
                visited.add(row.account)
            level.append(row)
            if not row.user and row.shares is None:
                level += self._level(row.account, visited)
        return level


def _associations(output: str) -> Iterable[Association]:
    for account, user, partition, parent, shares in _COLUMNS.rows(output, "sacctmgr"):
        if shares != _PARENT and not (shares.isascii() and shares.isdecimal() and len(shares) <= 10):
            raise UnavailableError("sacctmgr", f"'{shown(shares)}' is not a number of shares")
        yield Association(account, user, partition, parent, None if shares == _PARENT else int(shares))
