"""Sums over all periods that lie completely inside an interval.

A period is a time interval with the energy of one node. The sum uses stored daily sums for whole UTC
days, and single periods for the rest. If an edge of the interval is near a UTC midnight outside the
interval, the whole UTC day is added. Then its periods outside the interval are subtracted. Therefore
a day of another time zone needs only few periods besides the daily sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final, cast

from sqlalchemy import ColumnElement, Connection, Table, and_, func, not_, select

from slurm_energy.accounting.schema.usage_tables import usage_days, usage_sums
from slurm_energy.accounting.usage.interval_usage import IntervalUsage
from slurm_energy.accounting.usage.joined_sums import GROUPS_PER_TEXT, day_sums, joined_rows, split_rows
from slurm_energy.accounting.usage.sum_changes import DAY_S, SUM_COLUMNS

_SUMS, _DAYS = usage_sums.c, usage_days.c
_IS_DAY: Final = and_(_DAYS.end - _DAYS.start == DAY_S, _DAYS.start % DAY_S == 0)
"""Condition that a row of `usage_days` contains a whole UTC day. Other rows are periods of several days."""


def add_whole_periods(connection: Connection, interval: IntervalUsage, longest_s: int) -> None:
    """Add the stored energy of all periods that lie completely inside an interval to it.

    Args:
        connection: connection to the database.
        interval: the interval.
        longest_s: length of the longest stored period in seconds.
    """
    start, end = interval.start, interval.end
    first, last = _nearest_midnight(start), _nearest_midnight(end)
    if first >= last or abs(start - first) + abs(end - last) >= end - start:
        interval.add_rows(_sums(connection, usage_sums, *_inside(start, end)))
        return
    _add_days(connection, interval, first, last)
    if -(-(start + 1) // DAY_S) * DAY_S < end:  # a midnight is inside
        interval.add_rows(_sums(connection, usage_days, *_inside(start, end, usage_days), not_(_IS_DAY)))
    if start < first:
        interval.add_rows(_sums(connection, usage_sums, *_inside(start, first)))
    if end > last:
        interval.add_rows(_sums(connection, usage_sums, *_inside(last, end)))
    _subtract_outside(connection, interval, first, last, longest_s)


def _nearest_midnight(time_s: int) -> int:
    return (time_s + DAY_S // 2) // DAY_S * DAY_S


def _inside(start: int, end: int, table: Table = usage_sums) -> tuple[ColumnElement[bool], ...]:
    """Return SQL conditions for the rows of sums whose period lies within a time span.

    Args:
        start: start of the time span.
        end: end of the time span.
        table: table of the sums.
    """
    return table.c.start >= start, table.c.start < end, table.c.end <= end


def _add_days(connection: Connection, interval: IntervalUsage, first: int, last: int) -> None:
    """Add the sums of whole UTC days from one midnight to another."""
    if last - first > DAY_S:
        interval.add_rows(_sums(connection, usage_days, *_inside(first, last, usage_days), _IS_DAY))
        return
    interval.add_rows(day_sums(connection, first))


def _subtract_outside(
    connection: Connection, interval: IntervalUsage, first: int, last: int, longest_s: int
) -> None:
    """Correct sums of whole days to the sums of an interval that begins or ends within a day.

    The sums of the first and the last day contain periods outside the interval. The function subtracts these
    periods.
    """
    start, end = interval.start, interval.end
    outside: list[tuple[ColumnElement[bool], ...]] = []
    if first < start:
        outside.append((_SUMS.start >= first, _SUMS.start < start, _SUMS.end <= first + DAY_S))
    if end < last:
        earliest = max(start, last - DAY_S, end - longest_s)
        outside.append((_SUMS.start >= earliest, _SUMS.start < last, _SUMS.end > end, _SUMS.end <= last))
    for conditions in outside:
        interval.subtract_rows(_sums(connection, usage_sums, *conditions))


def _sums(connection: Connection, table: Table, *conditions: ColumnElement[bool]) -> Iterator[Sequence[int]]:
    """Yield usage group and sums of the rows of a table that fulfil the conditions.

    The function may yield several partial sums for the same group; the caller adds them.
    """
    group, columns = table.c.usage_group, [table.c[name] for name in SUM_COLUMNS]
    if connection.dialect.name == "sqlite":
        # Its driver is written in C, and sums of microjoules would exceed its 64 bits at 2.6 GWh.
        with closing(connection.execute(select(group, *columns).where(*conditions))) as result:
            yield from cast(Iterable[tuple[int, ...]], result.cursor or ())
        return
    if table is usage_sums:  # periods of less than about a day
        # A row of this statement has one row of each group, so that no server truncates its text.
        key = (_SUMS.start, _SUMS.end, group // GROUPS_PER_TEXT)
        texts = connection.execute(select(joined_rows([group, *columns])).where(*conditions).group_by(*key))
        for text in texts.scalars():
            yield from split_rows(text, 1 + len(columns))
        return
    sums = map(func.sum, columns)
    for row in connection.execute(select(group, *sums).where(*conditions).group_by(group)):
        yield tuple(map(int, row))  # servers return sums as decimals
