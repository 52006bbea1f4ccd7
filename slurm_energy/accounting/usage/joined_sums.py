"""Sums of the energy of many groups of job runs, read from the database in few texts.

The database server joins many numbers into a long text. The module reads and splits these texts. A month may
have a million energy values and tens of thousands of daily sums. The driver of MariaDB is written in Python
and would take 20 times as long to read them as separate rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, cast

import sqlalchemy
from sqlalchemy import ColumnElement, Connection, String, and_, func, not_, select

from slurm_energy.accounting.backends import MAX_JOINED_BYTES
from slurm_energy.accounting.schema import usage_tables
from slurm_energy.accounting.usage.sum_changes import DAY_S, HOUR_S, SUM_COLUMNS

_SUMS: Final = usage_tables.usage_sums.c
_DAYS: Final = usage_tables.usage_days.c
_DAY_COLUMNS: Final = (_DAYS.usage_group, *(_DAYS[name] for name in SUM_COLUMNS))
_IS_HOUR: Final = and_(_SUMS.end - _SUMS.start == HOUR_S, _SUMS.start % HOUR_S == 0)
GROUPS_PER_TEXT: Final = 64
"""Maximum number of groups in one joined text of a day. With 25 columns such a text has at most 34 KiB."""


class PeriodEnergies(NamedTuple):
    """Energy of each usage group in one period.

    A usage group is a combination of attributes, such as account and user, by which reports sum the
    energy.

    Attributes:
        start, end: Unix seconds.
        groups: row ids of the groups.
        energies_uj: microjoules of each group, in the same order.
    """

    start: int
    end: int
    groups: Sequence[int]
    energies_uj: Sequence[int]


def period_energies(connection: Connection, start: int, end: int) -> Iterator[PeriodEnergies]:
    """Yield the energies of each period in a time range, in the order of the periods.

    Periods of one whole UTC hour are left out, because `usage_day_hours` contains their energies.

    MariaDB computes later periods while earlier ones are processed. Therefore the caller must not use the
    connection before the iterator has ended.

    Args:
        connection: connection to the database.
        start: Unix seconds; periods that begin earlier are left out.
        end: Unix seconds; periods that end later are left out.
    """
    inside = (_SUMS.start >= start, _SUMS.start < end, _SUMS.end <= end, _SUMS.total_uj > 0, not_(_IS_HOUR))
    texts = [_joined(connection, column) for column in (_SUMS.usage_group, _SUMS.total_uj)]
    period = (_SUMS.start, _SUMS.end)
    statement = select(*period, *texts).where(*inside).group_by(*period).order_by(*period)
    options = {"stream_results": connection.dialect.name == "mariadb", "max_row_buffer": 1}
    rest: list[Any] = []
    with closing(connection.execute(statement, execution_options=options)) as result:
        rows = map(tuple, result)
        for row in rows:
            if _is_cut(row):
                rest = [row, *rows]
                break
            yield _period(row)
    for row in rest:
        yield _reread(connection, row) if _is_cut(row) else _period(row)


def day_sums(connection: Connection, start: int) -> Iterator[tuple[int, ...]]:
    """Yield a row for each group on a UTC day: its row id, and its sums in the order of `SUM_COLUMNS`.

    Args:
        connection: connection to the database.
        start: start of the day, Unix seconds.
    """
    inside = (_DAYS.start >= start, _DAYS.start < start + DAY_S, _DAYS.end <= start + DAY_S)
    if connection.dialect.name == "sqlite":  # its driver is written in C
        with closing(connection.execute(select(*_DAY_COLUMNS).where(*inside))) as result:
            yield from cast(Iterable[tuple[int, ...]], result.cursor or ())
        return
    text = joined_rows(_DAY_COLUMNS)
    statement = select(text).where(*inside).group_by(_DAYS.usage_group // GROUPS_PER_TEXT)
    for joined in connection.execute(statement).scalars():
        yield from split_rows(joined, len(_DAY_COLUMNS))


def joined_rows(columns: Sequence[ColumnElement[int]]) -> ColumnElement[str]:
    """Return an SQL expression that joins the values of several columns with commas.

    The values of all rows of a group are joined.
    """
    return func.aggregate_strings(func.concat_ws(",", *columns), ",")


def split_rows(joined: str, width: int) -> Iterator[tuple[int, ...]]:
    """Yield the rows in a text that `joined_rows` made. Each row has `width` columns."""
    numbers = tuple(_integers(joined))
    for first in range(0, len(numbers), width):
        yield numbers[first : first + width]


def _joined(connection: Connection, column: ColumnElement[int]) -> ColumnElement[str]:
    """Return an SQL expression that joins the values of a column with commas, over all rows of a group."""
    if connection.dialect.name == "postgresql":
        return func.aggregate_strings(sqlalchemy.cast(column, String), ",")
    return func.aggregate_strings(column, ",")  # with a cast, MariaDB takes 1.2 times as long


def _integers(text: str) -> list[int]:
    return cast(list[int], json.loads(f"[{text}]"))


def _is_cut(row: tuple[int, int, str, str]) -> bool:
    """Return whether a text in a row of the database has the maximum length.

    The database may have truncated such a text.
    """
    return max(map(len, row[2:])) >= MAX_JOINED_BYTES


def _period(row: tuple[int, int, str, str]) -> PeriodEnergies:
    start, end, groups, energies = row
    return PeriodEnergies(start, end, _integers(groups), _integers(energies))


def _reread(connection: Connection, row: tuple[int, int, str, str]) -> PeriodEnergies:
    """Read the energy of each usage group in one period again from the database.

    This is needed because the database server may have truncated the texts of the first result.
    """
    of_period = (_SUMS.start == row[0], _SUMS.end == row[1], _SUMS.total_uj > 0)
    rows = connection.execute(select(_SUMS.usage_group, _SUMS.total_uj).where(*of_period)).all()
    return PeriodEnergies(*row[:2], [one[0] for one in rows], [one[1] for one in rows])
