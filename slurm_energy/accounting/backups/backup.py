"""Backup of a database.

A backup is either a copy of a SQLite file, or a portable file from any kind of database. Both can be made
while senergyctld runs. Each backup contains the state of the database at one moment.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, LargeBinary, Table, func, inspect, select

from slurm_energy import __version__
from slurm_energy.accounting.backups.backup_file import BackupHeader, BackupWriter, temporary_name
from slurm_energy.accounting.backups.integrity import DamagedDatabaseError, schema_problems
from slurm_energy.accounting.engine import Database, explained, transaction
from slurm_energy.accounting.schema import tables
from slurm_energy.accounting.schema.migrations import schema_version
from slurm_energy.errors import EnergyError, UnavailableError

Progress = Callable[[int, int], None]
"""Function that is called with the completed and the total amount of work."""

_FETCH_ROWS: Final = 1000
_PAGES_AT_ONCE: Final = 4096
_BUSY_TIMEOUT_S: Final = 10.0
_DAMAGED_TODO: Final = "restore the newest good backup, see docs/accounting.md"


def write_portable(
    database: Database, target: Path, progress: Progress, *, replace: bool = False
) -> dict[str, int]:
    """Write all rows of a database to a portable backup file.

    Return the number of written rows by table.

    Args:
        database: the database; it is not changed.
        target: the backup file.
        progress: called with the number of rows written so far and the total number of rows.
        replace: whether to replace an existing file.

    Raises:
        DamagedDatabaseError: the database lacks a table or column.
        UnavailableError: the database cannot be read.
        EnergyError: the file exists already or cannot be written.
    """
    with explained(database), database.connect() as connection, transaction(connection, snapshot=True):
        version = schema_version(connection, database.name)
        if version == 0:
            raise UnavailableError(f"database {database.name}", "has no tables", "start senergyctld once")
        if problems := schema_problems(connection, version):
            raise DamagedDatabaseError(f"database {database.name}", f"damaged: {problems[0]}", _DAMAGED_TODO)
        columns = stored_columns(connection)
        counts = count_rows(connection, columns)
        header = BackupHeader(
            schema=version,
            release=__version__,
            created=time.time(),
            store=connection.dialect.name,
            tables={table.name: [_marked(table, name) for name in columns[table]] for table in columns},
        )
        counter = _RowCounter(progress, sum(counts.values()))
        with BackupWriter(target, header, replace=replace) as writer:
            for table, names in columns.items():
                writer.write_table(table.name, counter.counted(read_rows(connection, table, names)))
            writer.finish()
        return writer.rows


def copy_sqlite(source: Path, target: Path, progress: Progress, *, replace: bool = False) -> None:
    """Copy a SQLite file, which may be in use, and check the pages of the copy.

    Args:
        source: the SQLite file.
        target: path of the copy.
        progress: called with the number of pages copied so far and the total number of pages.
        replace: whether to replace an existing file.

    Raises:
        DamagedDatabaseError: the source is damaged. An existing target file stays unchanged.
        EnergyError: the target exists already, or a file cannot be read or written.
    """
    if target.exists() and not replace:
        raise EnergyError(str(target), "exists already", "name another file, or use --force")
    if not source.exists():
        raise UnavailableError(f"database {source}", "does not exist")
    temporary = temporary_name(target)
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _copy_pages(source, temporary, progress)
        sync_file(temporary)
        temporary.replace(target)
    except OSError as error:
        raise EnergyError(str(target), error.strerror or str(error), "name a writable file") from None
    except sqlite3.OperationalError as error:
        raise UnavailableError(f"backup of {source} to {target}", str(error)) from None
    except sqlite3.DatabaseError as error:
        raise DamagedDatabaseError(f"database {source}", f"damaged: {error}", _DAMAGED_TODO) from None
    finally:
        for path in (temporary, *side_files(temporary)):
            path.unlink(missing_ok=True)


def _copy_pages(source: Path, target: Path, progress: Progress) -> None:
    with (
        contextlib.closing(sqlite3.connect(source, timeout=_BUSY_TIMEOUT_S, isolation_level=None)) as reader,
        contextlib.closing(sqlite3.connect(target, isolation_level=None)) as writer,
    ):
        # The read transaction keeps one state, so that changes meanwhile do not restart the copy.
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        reader.backup(
            writer,
            pages=_PAGES_AT_ONCE,
            progress=lambda _, left, total: progress(total - left, total),
        )
        reader.execute("COMMIT")
        writer.execute("PRAGMA journal_mode = DELETE")  # one file
        (result,) = writer.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(str(result).splitlines()[-1])


def stored_columns(connection: Connection) -> dict[Table, list[str]]:
    """Return the columns of each existing table.

    In the result, each table comes after the tables to which its foreign keys refer.
    """
    inspector = inspect(connection)
    existing = set(inspector.get_table_names())
    columns = {}
    for table in tables.metadata.sorted_tables:
        if table.name in existing and table is not tables.schema_version:
            names = {column["name"] for column in inspector.get_columns(table.name)}
            columns[table] = [column.name for column in table.columns if column.name in names]
    return columns


def count_rows(connection: Connection, among: Mapping[Table, Any]) -> dict[str, int]:
    """Return the number of rows of each table."""
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in among
    }


def read_rows(connection: Connection, table: Table, names: Sequence[str]) -> Iterator[Sequence[Any]]:
    """Yield the rows of a table in the order of its primary key.

    Args:
        connection: connection to the database, in a transaction.
        table: SQLAlchemy definition of the table.
        names: names of the columns.
    """
    key = [column for column in table.primary_key if column.name in names]
    query = select(*(table.c[name] for name in names)).order_by(*key)
    with connection.execute(query.execution_options(yield_per=_FETCH_ROWS)) as result:
        yield from result


def side_files(path: Path) -> tuple[Path, ...]:
    """Return the paths of a SQLite file's write-ahead log and of the log's index."""
    return tuple(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))


def sync_file(path: Path) -> None:
    """Force a file and its directory to the disk."""
    for name, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        descriptor = os.open(name, flags | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _RowCounter:
    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def counted(self, rows: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        for row in rows:
            yield row
            self._done += 1
            if self._done % _FETCH_ROWS == 0:
                self._progress(self._done, self._total)


def _marked(table: Table, name: str) -> str:
    return f"{name}:base64" if isinstance(table.c[name].type, LargeBinary) else name
