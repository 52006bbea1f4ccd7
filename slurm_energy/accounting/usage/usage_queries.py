"""Sums of energy, time and jobs by group in a time window, for `senergy report`.

Sums of periods inside the window are exact. A period that reaches beyond an edge of the window contributes in
proportion to its time inside. The contributions are rounded so that adjacent windows add up to the whole
period. CPU and GPU time is always exact.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, func, literal, select

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.records.record_selection import Visibility
from slurm_energy.accounting.schema import tables, usage_tables
from slurm_energy.accounting.usage.groups import JOB, GroupKey
from slurm_energy.accounting.usage.hour_energies import hour_energies
from slurm_energy.accounting.usage.interval_usage import TOTAL, IntervalUsage, Rates
from slurm_energy.accounting.usage.joined_sums import period_energies
from slurm_energy.accounting.usage.run_time import run_times
from slurm_energy.accounting.usage.sum_changes import HOUR_S, SUM_COLUMNS
from slurm_energy.accounting.usage.usage_rollup import longest_period_s
from slurm_energy.accounting.usage.whole_periods import add_whole_periods

_IDS_AT_ONCE: Final = 500
_COMPONENTS: Final = ("cpu", "dram", "gpu", "other")
_ENERGY_COLUMNS: Final = ("total_uj", *(f"{name}_uj" for name in _COMPONENTS))
_TIME_COLUMNS: Final = ("cpu_seconds", "gpu_seconds")
_COUNTS: Final = frozenset(SUM_COLUMNS.index(f"{name}_rows") for name in _COMPONENTS)
"""Indices of the counts of rows with known energy, which are not divided in proportion to time."""
_TABLE: Final = usage_tables.usage_sums
_SUMS: Final = _TABLE.c


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Query for the energy and the time that jobs used in the intervals of a time window.

    Attributes:
        edges: ascending Unix seconds. They are the start of the window, the boundaries between its
            intervals, and the end of the window.
        clusters: names of clusters; an empty value means all.
        nodes: nodes whose energy is counted; an empty value means all nodes. With a list of nodes, CPU
            and GPU time are unknown.
        rates: function that returns the emissions and the cost per microjoule (rates) in a time span. An
            unknown rate is None. If the attribute `rates` itself is None, emissions and cost are not
            computed.
        count_jobs: whether to count also the jobs that ran.
    """

    edges: tuple[int, ...]
    clusters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    rates: Callable[[int, int], Rates] | None = None
    count_jobs: bool = False

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """Start and end of each interval."""
        return list(itertools.pairwise(self.edges))


@dataclass(frozen=True, slots=True)
class NodeCoverage:
    """First and last Unix second for which a node delivered energy."""

    cluster: str
    node: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """Result of a usage query: energies and times, summed over a time window.

    Attributes:
        intervals: sums of each interval of the window.
        groups: the groups by which the values are summed, by id of their database row.
        nodes: nodes that delivered energy at any time.
    """

    intervals: list[IntervalUsage]
    groups: Mapping[int, GroupKey]
    nodes: list[NodeCoverage]


def read_usage(connection: Connection, query: UsageQuery) -> WindowUsage:
    """Return the energies and times of a time window, summed by group for each of its intervals.

    All statements read the state of one moment, because the sums may change between two transactions.
    """
    with transaction(connection, snapshot=True):
        return _read_usage(connection, query)


def _read_usage(connection: Connection, query: UsageQuery) -> WindowUsage:
    longest_s = longest_period_s(connection)
    intervals: list[IntervalUsage] = []
    inside_uj: list[int] = []
    for start, end in query.intervals:
        interval = IntervalUsage(start, end)
        if query.nodes:
            _add_rows(interval, _rows_of_nodes(connection, query, start, end, longest_s), query.rates)
        else:
            add_whole_periods(connection, interval, longest_s)
            inside_uj.append(interval.energy_uj)
            _add_rows(interval, _rows_at_edges(connection, start, end, longest_s), query.rates)
            for edge_start, edge_end in _parts_of_hours(start, end):
                _add_times(connection, interval, edge_start, edge_end)
        if query.count_jobs:
            interval.jobs.update(_job_counts(connection, start, end))
        intervals.append(interval)
    if query.rates is not None and inside_uj:
        _weigh_whole_periods(connection, intervals, inside_uj, query.rates)
    ids = {group for interval in intervals for group in (*interval.sums, *interval.jobs)}
    groups = _groups(connection, ids, query.clusters)
    return WindowUsage(intervals, groups, _node_coverage(connection, query.clusters))


def visible_groups(
    groups: Mapping[int, GroupKey], visible: Visibility | None, name: str | None, *, with_meter: bool
) -> dict[int, GroupKey]:
    """Return those groups of the usage report that a caller may see.

    Args:
        groups: groups by id of their database row.
        visible: users and accounts whose jobs the caller may see; None means all.
        name: login name of the caller; None means unknown.
        with_meter: whether the caller may see idle and unattributed energy.
    """

    def may_see(key: GroupKey) -> bool:
        if key.kind != JOB:
            return with_meter
        if visible is None or key.account in visible.accounts:
            return True
        return key.uid == visible.uid if key.uid is not None else bool(name) and key.user == name

    return {row_id: key for row_id, key in groups.items() if may_see(key)}


def _weigh_whole_periods(
    connection: Connection,
    intervals: Sequence[IntervalUsage],
    inside_uj: Sequence[int],
    rates: Callable[[int, int], Rates],
) -> None:
    """Add emissions and cost to each interval of a usage report.

    A period is the stored energy of one node in a time range, usually an hour. Only periods that lie
    completely inside an interval are counted.

    Args:
        connection: connection to the database.
        intervals: successive intervals without gaps.
        inside_uj: energy of all periods inside each interval in microjoules.
        rates: emissions and cost per microjoule in a time span.
    """
    rest_uj = list(inside_uj)
    starts = [interval.start for interval in intervals]
    for begin, hours, rows in hour_energies(connection, starts[0], intervals[-1].end):
        of_hours = [rates(begin + hour * HOUR_S, begin + (hour + 1) * HOUR_S) for hour in range(hours)]
        kept = list(rows)
        for place in range(
            max(0, bisect_right(starts, begin) - 1), bisect_left(starts, begin + hours * HOUR_S)
        ):
            interval = intervals[place]
            first = max(0, -(-(interval.start - begin) // HOUR_S))
            last = min(hours, (interval.end - begin) // HOUR_S)
            if first < last:
                rest_uj[place] -= interval.weigh_hours(kept, first, of_hours[first:last])
    for interval, rest in zip(intervals, rest_uj, strict=True):
        if rest:  # there are periods that are not whole hours
            for start, end, members, energies in period_energies(connection, interval.start, interval.end):
                interval.weigh(members, energies, rates(start, end))


def _rows_at_edges(connection: Connection, start: int, end: int, longest_s: int) -> Iterator[Sequence[Any]]:
    """Yield the stored sums of every period of energy that crosses an edge of an interval.

    An edge is the start or the end of the interval. Each result is (start of the period, end of the period,
    group, sums).
    """
    # CPU and GPU time is read from the runs instead, which have exact times.
    sums = [literal(0) if name in _TIME_COLUMNS else _SUMS[name] for name in SUM_COLUMNS]
    columns = [_SUMS.start, _SUMS.end, _SUMS.usage_group, *sums]
    across_start = [_SUMS.start > start - longest_s, _SUMS.start < start, _SUMS.end > start]
    inside_to_end = [_SUMS.start >= max(start, end - longest_s), _SUMS.start < end, _SUMS.end > end]
    for condition in (across_start, inside_to_end):
        yield from connection.execute(
            select(*columns).where(*condition).order_by(_SUMS.start, _SUMS.end, _SUMS.usage_group)
        )


def _parts_of_hours(start: int, end: int) -> list[tuple[int, int]]:
    """Return the rest of a time span when its whole hours are removed: at most two partial hours.

    If the span contains no hour boundary, the result is the whole span.
    """
    first, last = -(-start // HOUR_S) * HOUR_S, end // HOUR_S * HOUR_S
    if first > last:
        return [(start, end)]
    return [part for part in ((start, first), (last, end)) if part[0] < part[1]]


def _add_times(connection: Connection, interval: IntervalUsage, start: int, end: int) -> None:
    """Add the exact CPU and GPU seconds of runs between two times to the usage of an interval.

    The seconds are added by group of runs.
    """
    for group, cpu_seconds, gpu_seconds in run_times(connection, start, end):
        times = {"cpu_seconds": cpu_seconds, "gpu_seconds": gpu_seconds}
        interval.add(group, [times.get(name, 0) for name in SUM_COLUMNS])


def _rows_of_nodes(
    connection: Connection, query: UsageQuery, start: int, end: int, longest_s: int
) -> Iterator[Sequence[Any]]:
    """Yield the sums of energy of the query's nodes, by time span and group of jobs.

    The database stores the energy of each node in periods. The function adds the energies of all nodes
    for periods with equal start, equal end and the same group of jobs. Each result contains start, end,
    group, and the sums.
    """
    rows = tables.periods.c
    sums: list[ColumnElement[Any]] = [func.sum(rows[name]) for name in _ENERGY_COLUMNS]
    sums += [func.count(rows[f"{name}_uj"]) for name in _COMPONENTS]
    keys = (rows.start, rows.end, rows.usage_group)
    for first in range(0, len(query.nodes), _IDS_AT_ONCE):
        condition = [
            rows.node.in_(query.nodes[first : first + _IDS_AT_ONCE]),
            *(rows.start > start - longest_s, rows.start < end, rows.end > start),
            rows.usage_group.is_not(None),
        ]
        if query.clusters:
            condition.append(rows.cluster.in_(query.clusters))
        for row in connection.execute(select(*keys, *sums).where(*condition).group_by(*keys).order_by(*keys)):
            values = [int(value or 0) for value in row[3:]]
            yield *row[:3], *values, *([0] * (len(SUM_COLUMNS) - len(values)))


def _add_rows(
    interval: IntervalUsage, rows: Iterable[Sequence[Any]], rates: Callable[[int, int], Rates] | None
) -> None:
    """Add stored energies and times to an interval of a usage report.

    Each row covers a period. If the period lies partly outside the interval, the row counts in proportion to
    the time inside. The counts of rows with known energy are not divided.
    """
    for start, end, group, *values in rows:
        inside = (max(start, interval.start), min(end, interval.end))
        parts = [
            int(value) if index in _COUNTS else _part(int(value), start, end, *inside)
            for index, value in enumerate(values)
        ]
        interval.prorated |= inside != (start, end) and any(values)
        interval.add(group, parts)
        if rates is not None and parts[TOTAL]:
            interval.weigh([group], [parts[TOTAL]], rates(*inside))


def _part(value: int, start: int, end: int, inside_start: int, inside_end: int) -> int:
    length = end - start
    return value * (inside_end - start) // length - value * (inside_start - start) // length


def _job_counts(connection: Connection, start: int, end: int) -> dict[int, int]:
    """Return how many runs of each group overlap the time from `start` to `end`.

    The result has the row id of the group as key. As in sreport, a run of less than 1 s does not count.
    The time in which a run was suspended is not part of its length.
    """
    runs = usage_tables.usage_runs.c
    rows = connection.execute(
        select(runs.usage_group, func.count())
        .where(runs.end > start, runs.start < end, runs.end - runs.start > runs.suspended_s)
        .group_by(runs.usage_group)
    )
    return {row[0]: int(row[1]) for row in rows}


def _groups(connection: Connection, ids: Collection[int], clusters: Collection[str]) -> dict[int, GroupKey]:
    table = usage_tables.usage_groups
    columns = [table.c.id, *(table.c[name] for name in GroupKey._fields)]
    ordered, groups = sorted(ids), {}
    for first in range(0, len(ordered), _IDS_AT_ONCE):
        condition = table.c.id.in_(ordered[first : first + _IDS_AT_ONCE])
        for row in connection.execute(select(*columns).where(condition)):
            key = GroupKey(*row[1:])
            if not clusters or key.cluster in clusters:
                groups[row[0]] = key
    return groups


def _node_coverage(connection: Connection, clusters: Collection[str]) -> list[NodeCoverage]:
    nodes = usage_tables.usage_nodes.c
    rows = connection.execute(
        select(nodes.cluster, nodes.node, nodes.start, nodes.end).order_by(nodes.cluster, nodes.node)
    )
    return [NodeCoverage(*row) for row in rows if not clusters or row[0] in clusters]
