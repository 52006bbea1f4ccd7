"""Parser of the words of `senergy report`, which follow the grammar of Slurm's sreport.

The words name a report and its conditions. They may be abbreviated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion, suggestion_or_list

MAX_TOP_COUNT: Final = 1_000_000
MAX_SIZE: Final = 2**31 - 1
DEFAULT_SIZES: Final = (50, 250, 500, 1000)


class ReportKind(StrEnum):
    """Kind of a report of `senergy report`.

    The value of a member is the name of the report, for example `AccountUtilizationByUser`. On the command
    line, the type of the report (`cluster`, `job` or `user`) precedes this name.
    """

    UTILIZATION = "Utilization"
    ACCOUNT_BY_USER = "AccountUtilizationByUser"
    USER_BY_ACCOUNT = "UserUtilizationByAccount"
    ACCOUNT_BY_QOS = "AccountUtilizationByQOS"
    BY_PARTITION = "UtilizationByPartition"
    BY_POLICY = "UtilizationByPolicy"
    BY_TAG = "UtilizationByTag"
    BY_GPU_KIND = "UtilizationByGpuKind"
    SIZES_BY_ACCOUNT = "SizesByAccount"
    TOP_USAGE = "TopUsage"
    DEFERRAL_SAVINGS = "DeferralSavings"


# As in sreport, an abbreviation stands for the first word in this table that begins with it.
_REPORTS: Final = {
    "cluster": (
        ReportKind.ACCOUNT_BY_USER,
        ReportKind.ACCOUNT_BY_QOS,
        ReportKind.USER_BY_ACCOUNT,
        ReportKind.UTILIZATION,
        ReportKind.BY_PARTITION,
        ReportKind.BY_POLICY,
        ReportKind.BY_TAG,
        ReportKind.BY_GPU_KIND,
    ),
    "job": (ReportKind.SIZES_BY_ACCOUNT, ReportKind.DEFERRAL_SAVINGS),
    "user": (ReportKind.TOP_USAGE,),
}
_SHORT: Final = {"ua": ReportKind.USER_BY_ACCOUNT, "aq": ReportKind.ACCOUNT_BY_QOS}
_TYPE_MIN_LENGTH: Final = {"cluster": 2, "job": 1, "user": 1}
_ONLY_SREPORT: Final = {
    "UserUtilizationByWckey": "the controller does not know wckeys",
    "WCKeyUtilizationByUser": "the controller does not know wckeys",
    "SizesByAccountAndWckey": "the controller does not know wckeys",
    "SizesByWckey": "the controller does not know wckeys",
    "reservation Utilization": "reservations have no energy of their own",
}
_BY_X: Final = frozenset(
    (ReportKind.BY_PARTITION, ReportKind.BY_POLICY, ReportKind.BY_TAG, ReportKind.BY_GPU_KIND)
)
_CLUSTER_REPORTS: Final = frozenset(_REPORTS["cluster"])
_WITH_JOBS: Final = frozenset(ReportKind) - {ReportKind.UTILIZATION}
_OF_USAGE: Final = frozenset(ReportKind) - {ReportKind.DEFERRAL_SAVINGS}


@dataclass(frozen=True, slots=True)
class _Word:
    """A keyword in the command line of a report.

    Attributes:
        name: the word in full.
        min_length: minimum number of characters of an abbreviation, as in sreport.
        value: whether the word has a value (`name=value`).
        reports: reports that accept the word.
    """

    name: str
    min_length: int
    value: bool
    reports: frozenset[ReportKind] = frozenset(ReportKind)


_SIZES: Final = frozenset({ReportKind.SIZES_BY_ACCOUNT})
_TOP: Final = frozenset({ReportKind.TOP_USAGE})
_TREE: Final = frozenset({ReportKind.ACCOUNT_BY_USER})
_METERED: Final = _CLUSTER_REPORTS - {ReportKind.UTILIZATION}
# The words are in the order in which sreport compares them.
_WORDS: Final = (
    _Word("all_clusters", 1, False, _OF_USAGE),
    _Word("AcctAsParent", 2, False, _SIZES),
    _Word("PrintJobCount", 2, False, _SIZES),
    _Word("FlatView", 2, False, _SIZES),
    _Word("Tree", 4, False, _TREE),
    _Word("group", 1, False, _TOP),
    _Word("JobsOnly", 5, False, _METERED),
    _Word("Users", 1, True, _WITH_JOBS),
    _Word("Accounts", 2, True, _WITH_JOBS),
    _Word("Acct", 4, True, _WITH_JOBS),
    _Word("Clusters", 1, True, _OF_USAGE),
    _Word("End", 1, True),
    _Word("Format", 1, True, _OF_USAGE),
    _Word("Grouping", 2, True, _SIZES),
    _Word("Start", 1, True),
    _Word("TopCount", 1, True, _TOP),
    _Word("Nodes", 1, True, _OF_USAGE),
    _Word("Partitions", 2, True, _WITH_JOBS),
    _Word("Interval", 1, True, _OF_USAGE),
)
_ONLY_SREPORT_WORDS: Final = {
    "Associations": "the controller does not know association ids",
    "Gid": "the controller does not know the groups of jobs",
    "Jobs": "use senergy acct -j, or senergy experiment -j, for chosen jobs",
    "Wckeys": "the controller does not know wckeys",
    "Names": "reservations have no energy of their own",
    "WithDeleted": "deleted users and accounts are always included",
}


class Interval(StrEnum):
    """Length of the intervals into which a report divides its time window.

    `ALL` means that the whole window is one interval.
    """

    ALL = "all"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """A parsed report with its conditions.

    Attributes:
        kind: report to print.
        start, end: begin and end of the time window as the user wrote them; empty means the default.
        fields: requested columns (`Login%20`); empty means the default columns.
        clusters, accounts, users, partitions: names to select; empty means all.
        nodes: node list as the user wrote it; empty means all nodes.
        all_clusters: include every cluster of the database.
        tree: indent accounts by their depth in the hierarchy.
        group: add up all accounts of a user.
        jobs_only: omit idle and unattributed energy and the total of the meter.
        flat_view: one row for each account of SizesByAccount, without the hierarchy.
        account_as_parent: show the accounts below the requested accounts.
        job_count: show numbers of jobs.
        sizes: boundaries of the size classes in CPUs; empty means one class for each size.
        top_count: maximum number of users in TopUsage.
        interval: length of the intervals into which the window is divided.
    """

    kind: ReportKind
    start: str = ""
    end: str = ""
    fields: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    nodes: str = ""
    all_clusters: bool = False
    tree: bool = False
    group: bool = False
    jobs_only: bool = False
    flat_view: bool = False
    account_as_parent: bool = False
    job_count: bool = False
    sizes: tuple[int, ...] = DEFAULT_SIZES
    top_count: int = 10
    interval: Interval = Interval.ALL


def parse_report(words: Sequence[str]) -> ReportRequest:
    """Return the report that words such as `cluster Util start=2026-01-01` describe.

    Raises:
        UsageError: the report or a word is unknown, ambiguous or not supported, or a value is wrong.
    """
    if not words:
        raise UsageError("senergy report", "no report is named", f"write one of {_all_reports()}")
    type_name = _report_type(words[0])
    if len(words) < 2:
        names = ", ".join(_REPORTS[type_name])
        raise UsageError(f"senergy report {type_name}", "no report is named", f"write one of {names}")
    kind = _report(type_name, words[1])
    conditions = _Conditions(kind)
    for word in words[2:]:
        conditions.add(word)
    return conditions.request()


def _all_reports() -> str:
    return ", ".join(f"{name} {kind}" for name, kinds in _REPORTS.items() for kind in kinds)


def _report_type(word: str) -> str:
    for name, min_length in _TYPE_MIN_LENGTH.items():
        if len(word) >= min_length and name.startswith(word.lower()):
            return name
    if len(word) >= 2 and "reservation".startswith(word.lower()):
        why = _ONLY_SREPORT["reservation Utilization"]
        raise UsageError("senergy report reservation", why, "run sreport")
    known = [*_REPORTS]
    todo = suggestion(word, known) or f"write one of {_all_reports()}"
    raise UsageError("senergy report", f"'{shown(word)}' is not a type of report", todo)


def _report(type_name: str, word: str) -> ReportKind:
    lower = word.lower()
    kinds = _REPORTS[type_name]
    if type_name == "cluster" and lower in _SHORT:
        return _SHORT[lower]
    for kind in kinds:
        if kind.lower() == lower:
            return kind
    fitting = [kind for kind in kinds if kind.lower().startswith(lower)]
    # Abbreviations of sreport stay valid, although further reports here also begin with "Utilization".
    if fitting and (len(fitting) == 1 or fitting[0] not in _BY_X):
        return fitting[0]
    if fitting:
        names = ", ".join(fitting)
        raise UsageError(f"senergy report {type_name}", f"'{shown(word)}' may be {names}", "write more of it")
    for name, why in _ONLY_SREPORT.items():
        if name.lower().startswith(lower) and lower:
            raise UsageError(f"senergy report {type_name} {name}", why, "run sreport")
    todo = suggestion(word, [*kinds]) or f"write one of {', '.join(kinds)}"
    raise UsageError("senergy report", f"'{shown(word)}' is not a report about a {type_name}", todo)


@dataclass(slots=True)
class _Conditions:
    """Collector of the words on the command line of `senergy report` that follow the report's name.

    Each word is either a condition that selects jobs, or an option of the report.
    """

    kind: ReportKind
    values: dict[str, list[str]] = field(default_factory=dict)

    def add(self, text: str) -> None:
        """Add a condition or option word from the command line, such as NAME or NAME=VALUE.

        Raises:
            UsageError: the word is unknown, has a value that it does not take, or lacks a value that
                it needs.
        """
        name, equals, value = text.partition("=")
        word = self._find(name, bool(equals), text)
        if word.value and not _unquoted(value):
            raise UsageError(
                f"senergy report: {word.name}=", "has no value", f"write {word.name.lower()}=VALUE"
            )
        self.values.setdefault(word.name, []).append(_unquoted(value))

    def _find(self, name: str, with_value: bool, text: str) -> _Word:
        lower = name.lower()
        named = [w for w in _WORDS if len(name) >= w.min_length and w.name.lower().startswith(lower)]
        for word in named:
            if word.value == with_value and self.kind in word.reports:
                return word
        raise self._unknown(named, lower, with_value, text)

    def _unknown(self, named: Sequence[_Word], lower: str, with_value: bool, text: str) -> UsageError:
        subject = f"senergy report {self.kind}"
        for word in named:
            if self.kind in word.reports:
                form = f"{word.name.lower()}=VALUE" if word.value else word.name.lower()
                why = "needs a value" if word.value else "has no value"
                return UsageError(subject, f"'{shown(text)}': {word.name} {why}", f"write {form}")
        for name, why in _ONLY_SREPORT_WORDS.items():
            if len(lower) >= 2 and name.lower().startswith(lower):
                return UsageError(subject, f"{name} is not a condition here", why)
        for word in named:
            reports = ", ".join(kind for kind in ReportKind if kind in word.reports)
            return UsageError(subject, f"{word.name} is not a condition of this report", f"only of {reports}")
        known = [word.name for word in _WORDS if self.kind in word.reports]
        if not with_value:
            todo = (
                suggestion(text, known) or f"write users={shown(text)} for a user; known: {', '.join(known)}"
            )
            return UsageError(subject, f"unknown condition '{shown(text)}'", todo)
        todo = suggestion(lower, known) or f"known: {', '.join(known)}"
        return UsageError(subject, f"unknown condition '{shown(text)}'", todo)

    def request(self) -> ReportRequest:
        """Return the request that results from all parsed words.

        Raises:
            UsageError: a value is not a number or not one of the known words.
        """
        values = self.values
        return ReportRequest(
            self.kind,
            start=self._last("Start"),
            end=self._last("End"),
            fields=self._names("Format"),
            clusters=self._names("Clusters"),
            accounts=(*self._names("Accounts"), *self._names("Acct")),
            users=self._names("Users"),
            partitions=self._names("Partitions"),
            nodes=",".join(values.get("Nodes", ())),
            all_clusters="all_clusters" in values,
            tree="Tree" in values,
            group="group" in values,
            jobs_only="JobsOnly" in values,
            flat_view="FlatView" in values,
            account_as_parent="AcctAsParent" in values,
            job_count="PrintJobCount" in values,
            sizes=_sizes(self._names("Grouping")),
            top_count=_top_count(self._last("TopCount")),
            interval=_interval(self._last("Interval")),
        )

    def _last(self, name: str) -> str:
        return self.values.get(name, [""])[-1]

    def _names(self, name: str) -> tuple[str, ...]:
        parts = (part.strip() for value in self.values.get(name, ()) for part in value.split(","))
        return tuple(dict.fromkeys(part for part in parts if part))


def _unquoted(value: str) -> str:
    """Return a value without its outer quotes. Such quotes remain if the user has quoted a word twice."""
    return value[1:-1] if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0] else value


def _sizes(texts: Sequence[str]) -> tuple[int, ...]:
    if not texts:
        return DEFAULT_SIZES
    if len(texts) == 1 and texts[0] and "individual".startswith(texts[0].lower()):
        return ()
    sizes = []
    for text in texts:
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and 0 < int(text) <= MAX_SIZE):
            todo = "write CPU counts such as grouping=50,250, or grouping=individual"
            raise UsageError(f"grouping=: '{shown(text)}' is not a number of CPUs", todo=todo)
        sizes.append(int(text))
    if sizes != sorted(set(sizes)):
        raise UsageError("grouping=: the sizes do not ascend", todo="write them as grouping=50,250,500")
    return tuple(sizes)


def _top_count(text: str) -> int:
    if not text:
        return 10
    if not (text.isascii() and text.isdecimal() and len(text) <= 7 and 0 < int(text) <= MAX_TOP_COUNT):
        raise UsageError(f"topcount=: '{shown(text)}' is not a number of users", todo="write topcount=20")
    return int(text)


def _interval(text: str) -> Interval:
    if not text:
        return Interval.ALL
    for interval in Interval:
        if interval.startswith(text.lower()):
            return interval
    todo = suggestion_or_list(text, [*Interval])
    raise UsageError(f"interval=: '{shown(text)}' is not an interval", todo=todo)
