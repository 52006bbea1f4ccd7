"""Computation of the lines of each report of `senergy report`.

The module groups the amounts, adds up the hierarchy of accounts, and sorts the lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from slurm_energy.reports.utilization.grammar import ReportKind, ReportRequest
from slurm_energy.reports.utilization.usage import (
    IDLE,
    JOB,
    UNATTRIBUTED,
    UNKNOWN_ENERGY,
    Amounts,
    UsageDocument,
    UsageRow,
    group_amounts,
    total,
)

TOTAL: Final = "total"
UNKNOWN_NAME: Final = "(unknown)"
NO_NAME: Final = "(none)"
_METER_LABELS: Final = {IDLE: "(idle)", UNATTRIBUTED: "(unattributed)", TOTAL: "(total)"}
_DIMENSION_OF: Final = {
    ReportKind.BY_PARTITION: "partition",
    ReportKind.BY_POLICY: "policy",
    ReportKind.BY_TAG: "tag",
    ReportKind.BY_GPU_KIND: "gpu_kind",
}
_EMPTY_NAMES: Final = {"tag": NO_NAME, "gpu_kind": NO_NAME}
_ACCOUNT_USER: Final = ("account", "user")


class SortOrder(StrEnum):
    """Order of the lines in a report: by name, by time or by energy."""

    NAME = "Name"
    TIME = "Time"
    ENERGY = "Energy"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a report.

    Attributes:
        cluster: name of the cluster.
        interval: index of the time interval.
        kind: kind of the amounts in the line: `job`, `idle`, `unattributed` or `total`.
        names: names in the line, such as account and user, by column.
        amounts: amounts of the line.
        whole: amounts of the cluster in the interval, relative to which percentages are computed.
        depth: depth of the account in the hierarchy.
        parts: amounts by size class; in the report `Utilization`, the amounts of jobs, of idle energy and of
            unattributed energy.
    """

    cluster: str
    interval: int
    kind: str
    names: Mapping[str, str]
    amounts: Amounts
    whole: Amounts
    depth: int = 0
    parts: Sequence[Amounts] = field(default=())


@dataclass(frozen=True, slots=True)
class SizeClass:
    """A class of jobs by number of CPUs.

    Attributes:
        low, high: minimum and maximum number of CPUs of the jobs in the class. If `high` is None, there is no
            maximum.
        title: header of the column, as in sreport.
    """

    low: int
    high: int | None
    title: str


def dimensions(request: ReportRequest) -> tuple[str, ...]:
    """Return the columns, such as account and user, by which senergyctld must group its sums.

    They are the columns that a report of `senergy report` shows or to which its conditions refer.
    """
    by: dict[str, None] = {}
    if request.kind in _DIMENSION_OF:
        by[_DIMENSION_OF[request.kind]] = None
    if request.kind in (ReportKind.ACCOUNT_BY_USER, ReportKind.USER_BY_ACCOUNT, ReportKind.TOP_USAGE):
        by |= {"account": None, "user": None}
    if request.kind is ReportKind.ACCOUNT_BY_QOS:
        by |= {"account": None, "qos": None}
    if request.kind is ReportKind.SIZES_BY_ACCOUNT:
        by |= {"account": None, "cpus": None}
    for name, values in (
        ("account", request.accounts),
        ("user", request.users),
        ("partition", request.partitions),
    ):
        if values:
            by[name] = None
    return tuple(by)


def size_classes(request: ReportRequest, document: UsageDocument) -> list[SizeClass]:
    """Return the classes of job sizes (allocated CPUs) for the report SizesByAccount."""
    if not request.sizes:
        sizes = sorted({row.cpus for row in document.rows if row.kind == JOB and row.cpus is not None})
        return [SizeClass(size, size, f"{size} CPUs") for size in sizes]
    bounds = itertools.pairwise((0, *request.sizes))
    last = request.sizes[-1]
    return [
        *(SizeClass(low, following - 1, f"{low}-{following - 1} CPUs") for low, following in bounds),
        SizeClass(last, None, f">= {last} CPUs"),
    ]


def report_lines(
    request: ReportRequest, document: UsageDocument, sort: SortOrder | None = None, *, with_meter: bool = True
) -> list[Line]:
    """Return the lines of a report in their order.

    Args:
        request: parsed report with its conditions.
        document: response of senergyctld, grouped by `dimensions(request)`.
        sort: order of users and of other groups; None means by CPU time as in sreport, or by energy.
        with_meter: whether to add lines for idle energy, unattributed energy and the total of the meters.
    """
    lines: list[Line] = []
    filtered = bool(request.accounts or request.users or request.partitions)
    classes = size_classes(request, document)
    by_block: dict[tuple[int, str], list[UsageRow]] = {}
    for row in document.rows:
        by_block.setdefault((row.interval, row.cluster), []).append(row)
    for interval in range(len(document.intervals)):
        for cluster in document.clusters:
            rows = by_block.get((interval, cluster))
            if not rows:
                continue
            parents = document.parents.get(cluster, {})
            visible = document.meter_visible
            block = _Block(request, cluster, interval, rows, parents, sort, classes, meter_visible=visible)
            lines += block.lines()
            shown = with_meter and visible and not (filtered or request.jobs_only)
            if shown and request.kind in _WITH_METER:
                lines += block.meter_lines()
    return lines


_WITH_METER: Final = frozenset(ReportKind) - {
    ReportKind.UTILIZATION,
    ReportKind.SIZES_BY_ACCOUNT,
    ReportKind.TOP_USAGE,
}
Order = Callable[[Line], tuple[float | str, ...]]


class _Block:
    """Writer of the part of a report that belongs to one cluster and one interval of time."""

    def __init__(
        self,
        request: ReportRequest,
        cluster: str,
        interval: int,
        rows: Sequence[UsageRow],
        parents: Mapping[str, str],
        sort: SortOrder | None,
        classes: Sequence[SizeClass],
        *,
        meter_visible: bool,
    ) -> None:
        self._request, self._cluster, self._interval = request, cluster, interval
        self._classes = classes
        self._rows, self._parents, self._sort = rows, parents, sort
        self._whole = total(row.amounts for row in rows)
        self._meter_known = meter_visible and self._whole.energy_uj is not None
        self._jobs = [row for row in rows if row.kind == JOB and self._is_selected(row)]

    def lines(self) -> Iterable[Line]:
        """Return the lines about jobs for the requested kind of report, in the order of this report."""
        kind = self._request.kind
        if kind is ReportKind.UTILIZATION:
            return self._utilization()
        if kind is ReportKind.ACCOUNT_BY_USER:
            return self._users() if self._request.users else self._account_tree()
        if kind in (ReportKind.USER_BY_ACCOUNT, ReportKind.TOP_USAGE):
            return self._users_by_usage()
        if kind is ReportKind.ACCOUNT_BY_QOS:
            return self._by(("account", "qos"), lambda line: (*line.names.values(),))
        if kind is ReportKind.SIZES_BY_ACCOUNT:
            return self._sizes()
        return self._by((_DIMENSION_OF[kind],), self._order(SortOrder.ENERGY))

    def meter_lines(self) -> Iterator[Line]:
        """Yield three lines of the report: idle energy, unattributed energy, and all measured energy."""
        for kind, amounts in zip((IDLE, UNATTRIBUTED), self._amounts_of(IDLE, UNATTRIBUTED), strict=True):
            yield self._line(kind, {}, amounts)
        yield self._line(TOTAL, {}, self._whole)

    def _amounts_of(self, *kinds: str) -> list[Amounts]:
        """Return the sums of the given kinds. Jobs without a row used no energy.

        Idle or unattributed energy without a row is 0 only if the user may see it and nodes were measured.
        """
        by_kind = group_amounts(self._rows, lambda row: row.kind)
        absent = Amounts() if self._meter_known else UNKNOWN_ENERGY
        return [by_kind.get(kind, Amounts() if kind == JOB else absent) for kind in kinds]

    def _line(self, kind: str, names: Mapping[str, str], amounts: Amounts, depth: int = 0) -> Line:
        if kind != JOB:
            names = dict.fromkeys(("account", *_DIMENSION_OF.values()), _METER_LABELS[kind])
        return Line(self._cluster, self._interval, kind, names, amounts, self._whole, depth)

    def _is_selected(self, row: UsageRow) -> bool:
        request = self._request
        users = [name.lower() for name in request.users]
        if users and (row.names.get("user") or "").lower() not in users:
            return False
        if request.partitions and row.names.get("partition") not in request.partitions:
            return False
        return request.kind is ReportKind.SIZES_BY_ACCOUNT or self._is_in_accounts(row)

    def _is_in_accounts(self, row: UsageRow) -> bool:
        """Return whether a row of usage belongs to one of the requested accounts.

        The report AccountUtilizationByUser also includes the accounts below a requested account.
        """
        wanted = {name.lower() for name in self._request.accounts}
        account = (row.names.get("account") or "").lower()
        if not wanted or account in wanted:
            return True
        if self._request.kind is not ReportKind.ACCOUNT_BY_USER:
            return False
        return not wanted.isdisjoint(name.lower() for name in self._ancestors(account))

    def _ancestors(self, account: str) -> list[str]:
        """Return an account and the accounts above it."""
        names = [account]
        while (above := self._parents.get(names[-1], "")) and above not in names:
            names.append(above)
        return names

    def _utilization(self) -> Iterator[Line]:
        parts = self._amounts_of(JOB, IDLE, UNATTRIBUTED)
        yield Line(self._cluster, self._interval, TOTAL, {}, self._whole, self._whole, parts=parts)

    def _by(self, names: Sequence[str], order: Order) -> list[Line]:
        def key(row: UsageRow) -> tuple[str, ...]:
            return tuple(_shown_name(name, row.names.get(name)) for name in names)

        lines = [
            self._line(JOB, dict(zip(names, values, strict=True)), amounts)
            for values, amounts in group_amounts(self._jobs, key).items()
        ]
        return sorted(lines, key=order)

    def _order(self, default: SortOrder) -> Order:
        sort = self._sort or default

        def order(line: Line) -> tuple[float | str, ...]:
            names = (*line.names.values(),)
            if sort is SortOrder.NAME:
                return names
            used = line.amounts.cpu_seconds if sort is SortOrder.TIME else line.amounts.energy_uj
            return used is None, -(used or 0), *names

        return order

    def _users(self) -> list[Line]:
        return self._by(("user", "account"), lambda line: (*line.names.values(),))

    def _users_by_usage(self) -> list[Line]:
        request = self._request
        lines = self._by(("user", "account"), self._order(SortOrder.TIME))
        if request.group:
            grouped: dict[str, list[Line]] = {}
            for line in lines:
                grouped.setdefault(line.names["user"], []).append(line)
            lines = [
                self._line(
                    JOB,
                    {"user": user, "account": ", ".join(sorted(line.names["account"] for line in own))},
                    total(line.amounts for line in own),
                )
                for user, own in grouped.items()
            ]
            lines.sort(key=self._order(SortOrder.TIME))
        return lines[: request.top_count] if request.kind is ReportKind.TOP_USAGE else lines

    def _account_tree(self) -> Iterator[Line]:
        """Yield the report lines of the account tree: each account, then its users and its subaccounts.

        Users and subaccounts are in alphabetical order at each level.
        """
        users: dict[str, list[tuple[str, Amounts]]] = {}
        by_user = group_amounts(
            self._jobs, lambda row: tuple(_shown_name(name, row.names.get(name)) for name in _ACCOUNT_USER)
        )
        for (account, user), amounts in by_user.items():
            users.setdefault(account, []).append((user, amounts))
        allowed = {name.lower() for name in self._request.accounts}
        below: dict[str, set[str]] = {}
        tops = set()
        for account in users:
            chain = self._ancestors(account)
            if allowed:  # the accounts above the requested ones are not shown
                places = [place for place, name in enumerate(chain) if name.lower() in allowed]
                chain = chain[: places[-1] + 1]
            for name, above in itertools.pairwise(chain):
                below.setdefault(above, set()).add(name)
            tops.add(chain[-1])
        for account in sorted(tops, key=lambda name: (name == UNKNOWN_NAME, name not in below, name)):
            yield from self._account(account, users, below, 0)

    def _account(
        self,
        account: str,
        users: Mapping[str, list[tuple[str, Amounts]]],
        below: Mapping[str, set[str]],
        depth: int,
    ) -> list[Line]:
        own = sorted(users.get(account, ()), key=lambda item: item[0])
        lines = [self._line(JOB, {"account": account, "user": user}, sums, depth + 1) for user, sums in own]
        sums = [line.amounts for line in lines]
        for child in sorted(below.get(account, ())):
            children = self._account(child, users, below, depth + 1)
            sums.append(children[0].amounts)
            lines += children
        return [self._line(JOB, {"account": account, "user": ""}, total(sums), depth), *lines]

    def _sizes(self) -> list[Line]:
        rows: dict[str, list[UsageRow]] = {}
        for row in self._jobs:
            shown = self._size_account(row.names.get("account") or "")
            if shown is not None:
                rows.setdefault(_shown_name("account", shown), []).append(row)
        whole = total(row.amounts for own in rows.values() for row in own)
        return [
            Line(
                *(self._cluster, self._interval, JOB, {"account": account}),
                *(total(row.amounts for row in own), whole),
                parts=_by_size(own, self._classes),
            )
            for account, own in sorted(rows.items())
        ]

    def _size_account(self, account: str) -> str | None:
        """Return the name of the account in whose report line the jobs of `account` are counted.

        The result is None if no line counts the jobs.
        """
        request = self._request
        wanted = {name.lower() for name in request.accounts}
        chain = self._ancestors(account)
        if request.flat_view or not self._parents:
            return account if not wanted or account.lower() in wanted else None
        if request.account_as_parent:
            parents = wanted or {chain[-1].lower()}
            shown = [name for name, above in itertools.pairwise(chain) if above.lower() in parents]
            return shown[-1] if shown else None
        if not wanted:
            return chain[-1]
        shown = [name for name in chain if name.lower() in wanted]
        return shown[-1] if shown else None


def _shown_name(dimension: str, name: str | None) -> str:
    """Return the name of an account or user as the report prints it.

    A name that begins with a parenthesis gets a prefix. It can therefore not imitate a line of the report
    such as `(total)`.
    """
    if not name:
        return _EMPTY_NAMES.get(dimension, UNKNOWN_NAME)
    return f"\\{name}" if name.startswith("(") else name


def _by_size(rows: Sequence[UsageRow], classes: Sequence[SizeClass]) -> list[Amounts]:
    return [
        total(
            row.amounts
            for row in rows
            if row.cpus is not None and row.cpus >= one.low and (one.high is None or row.cpus <= one.high)
        )
        for one in classes
    ]
