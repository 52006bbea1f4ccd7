"""Energy of each group of usage in each whole UTC hour of a time span.

A group is a combination of user, account and other attributes.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import ColumnElement, Connection, select

from slurm_energy.accounting.schema.usage_tables import HOUR_COLUMNS, usage_day_hours
from slurm_energy.accounting.usage.joined_sums import GROUPS_PER_TEXT, joined_rows, split_rows
from slurm_energy.accounting.usage.sum_changes import DAY_S, HOUR_S

_HOURS: Final = usage_day_hours.c


class HourEnergies(NamedTuple):
    """Energies in successive hours of one UTC day.

    Attributes:
        start: start of the first hour, Unix seconds.
        hours: number of hours.
        rows: per group, its row id, its microjoules in each hour, and possibly further values.
    """

    start: int
    hours: int
    rows: Iterable[Sequence[int]]


def hour_energies(connection: Connection, start: int, end: int) -> Iterator[HourEnergies]:
    """Yield the stored energies in the whole hours between two Unix times, in order of time.

    Each yielded item reads its `rows` from the database only when they are used. The caller must therefore
    read the rows of an item before it requests the next item. The caller must not use the connection until
    the iterator has ended.
    """
    first, last = -(-start // HOUR_S) * HOUR_S, end // HOUR_S * HOUR_S
    for begin, until in _parts(first, last):
        day, hour = begin - begin % DAY_S, begin % DAY_S // HOUR_S
        hours = 24 if until - begin >= DAY_S else (until - begin) // HOUR_S
        columns = [_HOURS[name] for name in HOUR_COLUMNS[hour : hour + hours]]
        for of_day, rows in _rows(connection, day, until, columns):
            yield HourEnergies(of_day + hour * HOUR_S, hours, rows)


def _parts(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Divide a span of whole hours at midnight (UTC), and yield the parts.

    The parts are the rest of the first day, all whole days together, and the beginning of the last day.
    Empty parts are left out.
    """
    if first >= last:
        return
    morning, midnight = -(-first // DAY_S) * DAY_S, last // DAY_S * DAY_S
    edges = [first, *(edge for edge in (morning, midnight) if first < edge < last), last]
    for begin, until in itertools.pairwise(edges):
        if begin < until:
            yield begin, until


def _rows(
    connection: Connection, first_day: int, until: int, columns: Sequence[ColumnElement[int]]
) -> Iterator[tuple[int, Iterable[Sequence[int]]]]:
    """Yield the energies of each UTC day that begins in a time span.

    The span begins with the day `first_day` and ends before `until`. For each day, its start and an
    iterator over its rows are yielded. A row consists of the id of a group (a combination of user,
    account and other attributes) and the energies of this group.
    """
    inside = (_HOURS.start >= first_day, _HOURS.start < until)
    group = _HOURS.usage_group
    if connection.dialect.name == "sqlite":  # its driver is written in C
        statement = select(group, *columns, _HOURS.start).where(*inside).order_by(_HOURS.start, group)
        with closing(connection.execute(statement)) as result:
            rows = cast(Iterable[tuple[int, ...]], result.cursor or ())
            yield from itertools.groupby(rows, operator.itemgetter(-1))
        return
    bucket = group // GROUPS_PER_TEXT
    statement = select(_HOURS.start, joined_rows([group, *columns])).where(*inside)
    texts: Iterable[Any] = connection.execute(statement.group_by(_HOURS.start, bucket).order_by(_HOURS.start))
    for day, joined in itertools.groupby(texts, operator.itemgetter(0)):
        yield day, itertools.chain.from_iterable(split_rows(row[1], 1 + len(columns)) for row in joined)
