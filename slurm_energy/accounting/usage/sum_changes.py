"""Changes to the stored sums of energy, CPU time and GPU time in the database.

The module collects the changes of one transaction and stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import Connection, Table, and_, bindparam, delete, select, tuple_

from slurm_energy.accounting.schema import usage_tables
from slurm_energy.accounting.schema.usage_tables import HOUR_COLUMNS
from slurm_energy.accounting.upserts import insert_or_replace

HOUR_S: Final = 3600
DAY_S: Final = 86400
_CHUNK: Final = 200
"""Maximum number of keys in a condition."""
_MAX_SUM: Final = 2**63 - 1
SUM_COLUMNS: Final = tuple(
    column.name for column in usage_tables.usage_sums.c if column.name not in ("start", "end", "usage_group")
)
Sums = dict[str, int]
SumKey = tuple[int, ...]
"""Start and end of a period, or start of a day, and row id of a group."""


class SumChanges:
    """Collector of the changes that one transaction makes to the sums in the usage tables.

    The sums are energy, CPU time and GPU time.
    """

    def __init__(self) -> None:
        self._by_key: dict[SumKey, Sums] = {}

    def add(self, key: SumKey, sums: Mapping[str, int]) -> None:
        """Add values to the collected change of one stored sum.

        The stored sums are sums of energy, CPU time and GPU time in the database.

        Args:
            key: identifies the stored sum by its period and its group.
            sums: values to add, by column.
        """
        total = self._by_key.setdefault(key, {})
        for name, value in sums.items():
            total[name] = total.get(name, 0) + value

    def apply(self, connection: Connection) -> None:
        """Apply the changes to the three tables of sums.

        The tables hold sums by period, sums by day, and the energy by day and hour.
        """
        _apply(connection, usage_tables.usage_sums, self._by_key)
        by_day = SumChanges()
        by_hour: dict[SumKey, Sums] = {}
        for (start, end, group), sums in self._by_key.items():
            by_day.add((*day_or_period(start, end), group), sums)
            if end - start == HOUR_S and start % HOUR_S == 0 and "total_uj" in sums:
                column = HOUR_COLUMNS[start % DAY_S // HOUR_S]
                by_hour.setdefault((start - start % DAY_S, group), {})[column] = sums["total_uj"]
        _apply(connection, usage_tables.usage_days, by_day._by_key)
        _apply(connection, usage_tables.usage_day_hours, by_hour)


def day_or_period(start: int, end: int) -> tuple[int, int]:
    """Return start and end of the UTC day that contains a period.

    A period that belongs to several days is returned unchanged.
    """
    day = start - start % DAY_S
    return (day, day + DAY_S) if end <= day + DAY_S else (start, end)


def _apply(connection: Connection, table: Table, by_key: Mapping[SumKey, Sums]) -> None:
    """Add changes to the sums in a table, and delete sums that become zero.

    Sums are limited to the largest integer that a database stores. Only forged or absurd energies reach this
    limit, and they must not stop the sums of other nodes.
    """
    keys, columns = _columns(table)
    changes = {key: sums for key, sums in sorted(by_key.items()) if any(sums.values())}
    rows, empty = [], []
    for key, present in _present_sums(connection, table, changes).items():
        sums = {name: min(present[name] + changes[key].get(name, 0), _MAX_SUM) for name in columns}
        row = dict(zip(keys, key, strict=True))
        if any(sums.values()):
            rows.append(row | sums)
        else:
            empty.append({f"of_{name}": value for name, value in row.items()})
    insert_or_replace(connection, table, rows)
    if empty:
        same = and_(*(table.c[name] == bindparam(f"of_{name}") for name in keys))
        connection.execute(delete(table).where(same), empty)


def _present_sums(connection: Connection, table: Table, wanted: Iterable[SumKey]) -> dict[SumKey, Sums]:
    """Return the sums of energy and time that a database table holds for the given keys.

    A key identifies one row of sums. A key without a row in the table gets sums of 0.
    """
    keys, columns = _columns(table)
    present = {key: dict.fromkeys(columns, 0) for key in wanted}
    chosen = list(present)
    key_columns = [table.c[name] for name in keys]
    statement = select(*key_columns, *(table.c[name] for name in columns))
    for first in range(0, len(chosen), _CHUNK):
        condition = tuple_(*key_columns).in_(chosen[first : first + _CHUNK])
        for row in connection.execute(statement.where(condition)):
            values = tuple(map(int, row))
            present[values[: len(keys)]] = dict(zip(columns, values[len(keys) :], strict=True))
    return present


def _columns(table: Table) -> tuple[list[str], list[str]]:
    """Return the column names of a table of sums: first its key columns, then its other columns."""
    keys = [column.name for column in table.primary_key]
    return keys, [column.name for column in table.c if column.name not in keys]
