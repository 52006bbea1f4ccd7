"""Changes of the sums of energy, CPU time and GPU time, and functions that write them to the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import Connection, Table, and_, bindparam, delete, select, tuple_

from slurm_energy.accounting.schema import usage_tables
from slurm_energy.accounting.upserts import insert_or_replace

HOUR_S: Final = 3600
DAY_S: Final = 86400
_CHUNK: Final = 200
"""Maximum number of keys in a condition."""
_MAX_SUM: Final = 2**63 - 1
SUM_COLUMNS: Final = tuple(
    column.name for column in usage_tables.usage_sums.c if column.name not in ("start", "end", "usage_group")
)
_SUM_KEY: Final = ("start", "end", "usage_group")
Sums = dict[str, int]
SumKey = tuple[int, int, int]
"""Start and end of a period, and row id of a group."""


class SumChanges:
    """Changes that one transaction makes to the sums of energy, CPU time and GPU time."""

    def __init__(self) -> None:
        self._by_key: dict[SumKey, Sums] = {}

    def add(self, key: SumKey, sums: Mapping[str, int]) -> None:
        """Add values to the changes of the sum with the given key."""
        total = self._by_key.setdefault(key, {})
        for name, value in sums.items():
            total[name] = total.get(name, 0) + value

    def apply(self, connection: Connection) -> None:
        """Apply the changes to the tables of sums by period and by day."""
        _apply(connection, usage_tables.usage_sums, self._by_key)
        by_day = SumChanges()
        for (start, end, group), sums in self._by_key.items():
            by_day.add((*day_or_period(start, end), group), sums)
        _apply(connection, usage_tables.usage_days, by_day._by_key)


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
    changes = {key: sums for key, sums in sorted(by_key.items()) if any(sums.values())}
    rows, empty = [], []
    for key, present in _present_sums(connection, table, changes).items():
        sums = {name: min(present[name] + changes[key].get(name, 0), _MAX_SUM) for name in SUM_COLUMNS}
        row = dict(zip(_SUM_KEY, key, strict=True))
        if any(sums.values()):
            rows.append(row | sums)
        else:
            empty.append({f"of_{name}": value for name, value in row.items()})
    insert_or_replace(connection, table, rows)
    if empty:
        same = and_(*(table.c[name] == bindparam(f"of_{name}") for name in _SUM_KEY))
        connection.execute(delete(table).where(same), empty)


def _present_sums(connection: Connection, table: Table, keys: Iterable[SumKey]) -> dict[SumKey, Sums]:
    """Return the stored sums of the given keys; 0 for a key without a row."""
    present = {key: dict.fromkeys(SUM_COLUMNS, 0) for key in keys}
    wanted = list(present)
    columns = [table.c[name] for name in _SUM_KEY]
    for first in range(0, len(wanted), _CHUNK):
        chosen = tuple_(*columns).in_(wanted[first : first + _CHUNK])
        for row in connection.execute(select(*columns, *(table.c[n] for n in SUM_COLUMNS)).where(chosen)):
            start, end, group, *sums = map(int, row)
            present[start, end, group] = dict(zip(SUM_COLUMNS, sums, strict=True))
    return present
