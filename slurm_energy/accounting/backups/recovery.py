"""Recovery of the readable rows of a damaged SQLite file into a new file.

Pages that SQLite cannot read are skipped. Rows with values of a wrong type are left out. Records whose JSON
text differs from the columns of their row are left out, too. A reference to a lost row is cleared. If the
column of the reference must not be NULL, the row with the reference is left out.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, LargeBinary, Table

from slurm_energy.accounting.backups.backup import side_files, stored_columns, sync_file
from slurm_energy.accounting.backups.backup_file import temporary_name
from slurm_energy.accounting.backups.content_check import record_problem
from slurm_energy.accounting.backups.integrity import verify
from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.schema import migrations, tables, usage_tables
from slurm_energy.accounting.usage.usage_rollup import LAST_PERIOD
from slurm_energy.accounting.writer_lock import adopt_owner
from slurm_energy.errors import EnergyError, UnavailableError

_ROWS_AT_ONCE: Final = 100
_MAX_ROW_ID: Final = 2**63 - 1
_IDS_BEYOND_LAST: Final = 100_000
"""Number of row ids to try after the last readable row if the end of a table cannot be read."""


@dataclass(slots=True)
class RecoveredTable:
    """The rows recovered from one table, and its losses.

    Attributes:
        rows: number of recovered rows.
        missing: number of row ids, up to the highest one, without a recovered row. Rows that were
            deleted before the damage are counted, too. None means that the rows of the table have
            no ids.
        unreadable: number of row ids at which SQLite reported damage. A table without row ids is
            read twice, forward and backward. For this table, the value is the number of readings
            (0 to 2) in which SQLite reported damage.
        invalid: number of rows that were read but have impossible values or refer to a lost row.
    """

    rows: int = 0
    missing: int | None = None
    unreadable: int = 0
    invalid: int = 0


@dataclass(slots=True)
class Recovery:
    """The result of the recovery of a damaged database file.

    Attributes:
        tables: result of each table by name.
        sums_reset: whether the sums of `senergy report` were deleted because some of the sums were lost. In
            this case senergyctld computes all sums again from the periods.
    """

    tables: dict[str, RecoveredTable] = field(default_factory=dict)
    sums_reset: bool = False


def recover(source: Path, target: Path, progress: Callable[[int], None]) -> Recovery:
    """Write the readable rows of a damaged SQLite file to a new file and return the result.

    Args:
        source: the damaged file; it is not changed.
        target: the new file.
        progress: called with the number of recovered rows.

    Raises:
        UnavailableError: the file cannot be opened, or its schema cannot be read.
        EnergyError: the target exists already or cannot be written.
    """
    if target.exists():
        raise EnergyError(str(target), "exists already", "name another file")
    new = temporary_name(target)
    try:
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        result = _recover(source, new, progress)
        verify(new)
        for path in side_files(new):
            path.unlink(missing_ok=True)
        adopt_owner(new)
        sync_file(new)
        new.replace(target)
    except OSError as error:
        raise EnergyError(str(target), error.strerror or str(error)) from None
    finally:
        for path in (new, *side_files(new)):
            path.unlink(missing_ok=True)
    return result


def _recover(source: Path, new: Path, progress: Callable[[int], None]) -> Recovery:
    result = Recovery()
    with _opened(source) as damaged:
        version = _schema_version(damaged, source)
        with connect(new) as connection:
            migrations.upgrade(connection, 0, version)
            columns = stored_columns(connection)
        with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as copy:
            copy.execute("PRAGMA foreign_keys = OFF")
            copy.execute("BEGIN")
            for table, names in columns.items():
                result.tables[table.name] = _copy_table(damaged, copy, table, names, progress)
            _clear_references(copy, columns, result)
            for table in columns:
                result.tables[table.name].missing = _missing_ids(copy, table)
            _reset_damaged_sums(copy, columns, result)
            _correct_last_period(copy, columns)
            copy.execute("COMMIT")
    migrations.prepare(new)
    with connect(new) as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return result


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[sqlite3.Connection]:
    if not source.is_file():
        raise UnavailableError(f"database {source}", "no such file")
    with contextlib.closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.text_factory = bytes  # texts may be damaged, too
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cell_size_check = ON")
        yield connection


def _schema_version(damaged: sqlite3.Connection, source: Path) -> int:
    try:
        names = {bytes(name).decode() for (name,) in damaged.execute("SELECT name FROM sqlite_master")}
    except (sqlite3.Error, UnicodeDecodeError) as error:
        todo = "restore a backup"
        raise UnavailableError(f"database {source}", f"its schema cannot be read: {error}", todo) from None
    if tables.records.name not in names:
        raise UnavailableError(f"database {source}", "has no table of records", "restore a backup")
    with contextlib.suppress(sqlite3.Error):
        (version,) = damaged.execute("SELECT max(version) FROM schema_version").fetchone()
        if isinstance(version, int) and 1 <= version <= migrations.SCHEMA_VERSION:
            return version
    return migrations.SCHEMA_VERSION


def _copy_table(
    damaged: sqlite3.Connection,
    copy: sqlite3.Connection,
    table: Table,
    names: Sequence[str],
    progress: Callable[[int], None],
) -> RecoveredTable:
    result = RecoveredTable()
    marks = ",".join("?" * len(names))
    listed = ",".join(f'"{name}"' for name in names)
    for row in _readable_rows(damaged, table, listed, result):
        values = _valid_values(table, names, row)
        if values is None:
            result.invalid += 1
            continue
        done = copy.execute(f"INSERT OR IGNORE INTO {table.name} ({listed}) VALUES ({marks})", values)
        result.rows += done.rowcount
        result.invalid += 1 - done.rowcount
        progress(result.rows)
    return result


def _readable_rows(
    damaged: sqlite3.Connection, table: Table, listed: str, result: RecoveredTable
) -> Iterator[tuple[Any, ...]]:
    try:
        damaged.execute(f"SELECT rowid FROM {table.name} LIMIT 0")
    except sqlite3.Error:
        yield from _rows_by_key(damaged, table, listed, result)
        return
    query = f"SELECT {listed}, rowid FROM {table.name} NOT INDEXED WHERE rowid"
    row_id = last_readable = 0
    end = _last_row_id(damaged, table)
    while row_id <= (last_readable + _IDS_BEYOND_LAST if end is None else end):
        try:
            rows = damaged.execute(f"{query} > ? ORDER BY rowid LIMIT ?", (row_id, _ROWS_AT_ONCE)).fetchall()
            row_id = rows[-1][-1] if rows else _MAX_ROW_ID
        except sqlite3.DatabaseError:
            rows = _rows_one_by_one(damaged, query, range(row_id + 1, row_id + 1 + _ROWS_AT_ONCE), result)
            row_id += _ROWS_AT_ONCE
        if rows:
            last_readable = rows[-1][-1]
        yield from (row[:-1] for row in rows)


def _rows_one_by_one(
    damaged: sqlite3.Connection, query: str, row_ids: range, result: RecoveredTable
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for row_id in row_ids:
        try:
            rows += damaged.execute(f"{query} = ?", (row_id,)).fetchall()
        except sqlite3.DatabaseError:
            result.unreadable += 1
    return rows


def _last_row_id(damaged: sqlite3.Connection, table: Table) -> int | None:
    """Return the highest row id of a table; None if the end of the table cannot be read."""
    try:
        (last,) = damaged.execute(f"SELECT max(rowid) FROM {table.name} NOT INDEXED").fetchone()
    except sqlite3.DatabaseError:
        return None
    return int(last or 0)


def _rows_by_key(
    damaged: sqlite3.Connection, table: Table, listed: str, result: RecoveredTable
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table without row ids from a SQLite file that may be damaged.

    The rows come in ascending order of the key, up to the first damaged place. If there is damage, the rows
    after the last damaged place follow in descending order.
    """
    key = ",".join(f'"{column.name}"' for column in table.primary_key)
    backwards = ",".join(f'"{column.name}" DESC' for column in table.primary_key)
    for order in (key, backwards):
        try:
            yield from damaged.execute(f"SELECT {listed} FROM {table.name} ORDER BY {order}")
        except sqlite3.DatabaseError:
            result.unreadable += 1
            continue
        return


def _valid_values(table: Table, names: Sequence[str], row: Sequence[Any]) -> list[Any] | None:
    """Return the values of a recovered database row, with texts decoded.

    Return None if a value of the row is impossible.
    """
    try:
        values = [_valid_value(table.c[name], value) for name, value in zip(names, row, strict=True)]
    except ValueError:
        return None
    if table is tables.records and record_problem(dict(zip(names, values, strict=True))):
        return None
    return values


def _valid_value(column: Column[Any], value: Any) -> Any:
    kind = column.type.python_type
    if value is None:
        if not column.nullable and not column.primary_key:
            raise ValueError
        return None
    if isinstance(column.type, LargeBinary):
        kind = bytes
    elif isinstance(value, bytes):
        value = value.decode()
    allowed = {float: (float, int), bool: (int,)}.get(kind, (kind,))
    if not isinstance(value, allowed):
        raise ValueError
    return value


def _missing_ids(copy: sqlite3.Connection, table: Table) -> int | None:
    if table.autoincrement_column is None:
        return None
    (last, count) = copy.execute(f"SELECT max(id), count(*) FROM {table.name}").fetchone()
    return int((last or 0) - count)


def _clear_references(
    copy: sqlite3.Connection, columns: Mapping[Table, Sequence[str]], result: Recovery
) -> None:
    """Clear references to rows that do not exist.

    A row is deleted if the column with the reference must not be NULL.
    """
    for table in columns:  # referenced tables come first
        for column in table.columns:
            for reference in column.foreign_keys:
                other = reference.column
                dangling = (
                    f'"{column.name}" IS NOT NULL AND "{column.name}" NOT IN'
                    f' (SELECT "{other.name}" FROM {other.table.name})'
                )
                clear = column.nullable and not column.primary_key
                action = (
                    f'UPDATE {table.name} SET "{column.name}" = NULL'
                    if clear
                    else f"DELETE FROM {table.name}"
                )
                count = copy.execute(f"{action} WHERE {dangling}").rowcount
                result.tables[table.name].invalid += count
                result.tables[table.name].rows -= 0 if clear else count


def _reset_damaged_sums(
    copy: sqlite3.Connection, columns: Mapping[Table, Sequence[str]], result: Recovery
) -> None:
    """Delete all stored sums of `senergy report` if any of them is lost in a damaged database.

    senergyctld then computes all sums again.
    """
    sums = [table for table in usage_tables.ALL if table in columns]
    if not any(result.tables[table.name].unreadable + result.tables[table.name].invalid for table in sums):
        return
    result.sums_reset = True
    for table in reversed(sums):
        copy.execute(f"DELETE FROM {table.name}")
        result.tables[table.name].rows = 0
    copy.execute("UPDATE periods SET usage_group = NULL")


def _correct_last_period(copy: sqlite3.Connection, columns: Mapping[Table, Sequence[str]]) -> None:
    """Correct the id of the last period that `senergy report` has counted, if this period is lost.

    New periods get ids after that of the last recovered row. If such an id were not above the stored id,
    `senergy report` would not count the period.
    """
    if usage_tables.usage_state in columns:
        last = "(SELECT coalesce(max(id), 0) FROM node_periods)"
        copy.execute(f"UPDATE usage_state SET value = min(value, {last}) WHERE name = ?", (LAST_PERIOD,))
