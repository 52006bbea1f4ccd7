"""Restoration of a backup into a database of any kind.

A restoration replaces the whole contents, or changes nothing if it fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Table, insert, text
from sqlalchemy.exc import StatementError

from slurm_energy.accounting.backups.backup import (
    Progress,
    count_rows,
    read_rows,
    side_files,
    stored_columns,
    sync_file,
)
from slurm_energy.accounting.backups.backup_file import BackupReader, DamagedBackupError, is_backup_file
from slurm_energy.accounting.backups.integrity import DamagedDatabaseError, verify
from slurm_energy.accounting.engine import Database, connect, error_reason, explained, transaction
from slurm_energy.accounting.schema import migrations, tables
from slurm_energy.accounting.writer_lock import adopt_owner, writer_lock
from slurm_energy.errors import EnergyError, NotFoundError, UnavailableError
from slurm_energy.quantities import shown

_BATCH_ROWS: Final = 1000
_SQLITE_MAGIC: Final = b"SQLite format 3\0"

_TableRows = Iterator[tuple[Table, Sequence[str], Iterator[Sequence[Any]]]]


def restore(source: Path, database: Database, progress: Progress, *, replace: bool = False) -> dict[str, int]:
    """Replace the contents of a database by a backup. Return the number of rows by table.

    The contents of a backup with an older schema are first upgraded in a temporary SQLite file. The backup
    itself is not changed.

    Args:
        source: portable backup file, or copy of a SQLite file.
        database: the database whose contents are replaced.
        progress: called with the number of rows restored so far and the total number of rows. Both may be 0
            while the numbers are unknown.
        replace: whether to replace the contents of a target that is not empty.

    Raises:
        AlreadyRunningError: senergyctld uses the target.
        DamagedBackupError: the backup is damaged; the target is unchanged.
        EnergyError: the target is not empty and `replace` is false, or a file cannot be read or written.
        UnavailableError: the target cannot be opened, or the backup is newer than this release.
    """
    _require_file(source)
    if database.path is not None and not database.path.parent.is_dir():
        raise UnavailableError(f"database {database.name}", f"no directory {database.path.parent}")
    with writer_lock(database):
        if not replace:
            _require_empty(database)
        if database.path is not None:
            return _restore_file(source, database.path, progress)
        return _restore_server(source, database, progress)


def read_backup(source: Path, progress: Progress) -> dict[str, int]:
    """Read a whole backup without restoring it, and return the number of rows by table.

    Raises:
        DamagedBackupError, DamagedDatabaseError: the backup is damaged.
    """
    _require_file(source)
    if not is_backup_file(source):
        _require_sqlite(source)
        verify(source)
        with connect(source, read_only=True) as connection:
            return count_rows(connection, stored_columns(connection))
    with BackupReader(source) as reader:
        for done, (_, rows) in enumerate(reader.tables(), 1):
            for _ in rows:
                pass
            progress(done, len(reader.header.tables))
        reader.verify()
        return reader.rows


def _restore_file(source: Path, target: Path, progress: Progress) -> dict[str, int]:
    new = target.with_name(f".{target.name}.restored")
    try:
        _build_sqlite(source, new, progress)
        with connect(new) as connection:
            counts = count_rows(connection, stored_columns(connection))
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        for path in side_files(new):
            path.unlink(missing_ok=True)
        adopt_owner(new)
        sync_file(new)
        # The log of the replaced file must not be applied to the new one. After a crash between these steps
        # the old file is still there, without its latest changes, and the restoration can be repeated.
        _fold_log(target)
        for path in side_files(target):
            path.unlink(missing_ok=True)
        new.replace(target)
        sync_file(target)
        return counts
    except OSError as error:
        raise EnergyError(f"database {target}", error.strerror or str(error)) from None
    finally:
        for path in (new, *side_files(new)):
            path.unlink(missing_ok=True)


def _fold_log(path: Path) -> None:
    """Move the changes in a SQLite file's write-ahead log into the file, unless the file is damaged."""
    if path.exists():
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _restore_server(source: Path, database: Database, progress: Progress) -> dict[str, int]:
    migrations.prepare(database.location)
    with (
        _current_rows(source, progress) as (total, table_rows),
        explained(database),
        database.connect() as connection,
        transaction(connection),
    ):
        for table in reversed(tables.metadata.sorted_tables):
            if table is not tables.schema_version:
                connection.execute(table.delete())
        counts = _insert_all(connection, table_rows, progress, total)
        _advance_sequences(connection)
    return counts


@contextlib.contextmanager
def _current_rows(source: Path, progress: Progress) -> Iterator[tuple[int, _TableRows]]:
    """Context manager that reads a backup as rows of the current schema.

    It yields the number of rows (0 means unknown) and the rows by table. A backup with an older schema is
    migrated first.
    """
    if is_backup_file(source):
        with BackupReader(source) as reader:
            if reader.header.schema == migrations.SCHEMA_VERSION:
                yield 0, _file_rows(reader)
                return
    with tempfile.TemporaryDirectory(prefix="senergy-restore-") as directory:
        copy = Path(directory) / "senergy.db"
        _build_sqlite(source, copy, progress)
        with connect(copy, read_only=True) as connection, transaction(connection, snapshot=True):
            columns = stored_columns(connection)
            total = sum(count_rows(connection, columns).values())
            rows = ((table, names, read_rows(connection, table, names)) for table, names in columns.items())
            yield total, rows


def _build_sqlite(source: Path, target: Path, progress: Progress) -> None:
    """Make a SQLite file with the current schema from a backup.

    Raises:
        DamagedBackupError: the backup is damaged.
    """
    for path in (target, *side_files(target)):
        path.unlink(missing_ok=True)
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if is_backup_file(source):
        with BackupReader(source) as reader, connect(target) as connection:
            _require_known(source, reader.header.schema)
            migrations.upgrade(connection, 0, reader.header.schema)
            with transaction(connection), _damage_explained(source):
                _insert_all(connection, _file_rows(reader), progress, 0)
    else:
        _require_sqlite(source)
        for path, copy in zip((source, *side_files(source)), (target, *side_files(target)), strict=True):
            if path.exists() and not path.name.endswith("-shm"):
                shutil.copyfile(path, copy)
        _refuse_programs(source, target)
    try:
        verify(target)
    except DamagedDatabaseError as error:
        raise DamagedBackupError(f"backup {source}", error.why) from None
    migrations.prepare(target)


@contextlib.contextmanager
def _damage_explained(source: Path) -> Iterator[None]:
    try:
        yield
    except (StatementError, ValueError, OverflowError) as error:
        raise DamagedBackupError(
            f"backup {source}", f"has impossible values: {error_reason(error)}"
        ) from None


def _file_rows(reader: BackupReader) -> _TableRows:
    """Yield each table of a backup file with its columns and rows.

    After the last row of the last table, the checksum of the file is verified.
    """
    for name, rows in reader.tables():
        columns = [column.removesuffix(":base64") for column in reader.header.tables[name]]
        table = tables.metadata.tables.get(name)
        unknown = [column for column in columns if table is None or column not in table.c]
        if table is None or unknown:
            what = f"table {name}" if table is None else f"column {name}.{unknown[0]}"
            raise DamagedBackupError(f"backup {reader.path}", f"has the unknown {what}")
        yield table, columns, rows
    reader.verify()


def _insert_all(
    connection: Connection, table_rows: _TableRows, progress: Progress, total: int
) -> dict[str, int]:
    counts: dict[str, int] = {}
    done = 0
    for table, names, rows in table_rows:
        counts[table.name] = 0
        while batch := [dict(zip(names, row, strict=True)) for row in islice(rows, _BATCH_ROWS)]:
            connection.execute(insert(table), batch)
            counts[table.name] += len(batch)
            done += len(batch)
            progress(done, total)
    return counts


def _advance_sequences(connection: Connection) -> None:
    """Make PostgreSQL assign new row ids above the restored row ids.

    Other databases choose higher ids by themselves.
    """
    if connection.dialect.name != "postgresql":
        return
    for table in tables.metadata.sorted_tables:
        if table.autoincrement_column is not None:
            connection.execute(
                text(
                    "SELECT setval(pg_get_serial_sequence(:name, 'id'), coalesce(max(id), 0) + 1, false)"
                    f" FROM {table.name}"
                ),
                {"name": table.name},
            )


def _require_file(source: Path) -> None:
    if not source.is_file():
        raise NotFoundError(f"backup {source}", "no such file")


def _require_sqlite(source: Path) -> None:
    """Raise an error for a file that is not a SQLite database.

    Empty files are refused too, because SQLite would read them as databases without tables.

    Raises:
        DamagedBackupError: the file is no SQLite file, or has no schema.
    """
    with source.open("rb") as file:
        magic = file.read(len(_SQLITE_MAGIC))
    if magic == _SQLITE_MAGIC:
        with explained(Database(source)), connect(source, read_only=True) as connection:
            if migrations.schema_version(connection, str(source)):
                return
    raise DamagedBackupError(f"backup {source}", "neither a portable backup nor a copy of a SQLite database")


def _refuse_programs(source: Path, copy: Path) -> None:
    """Raise an error for a SQLite file that has triggers or views.

    The triggers and views would act in senergyctld's database.

    Raises:
        DamagedBackupError: the file has a trigger or view. The message names one of them.
    """
    query = "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view') ORDER BY name"
    with explained(Database(source)), connect(copy, read_only=True) as connection:
        row = connection.exec_driver_sql(query).first()
    if row is not None:
        raise DamagedBackupError(f"backup {source}", f"has the unknown {row[0]} {shown(str(row[1]), 60)}")


def _require_known(source: Path, version: int) -> None:
    if not 1 <= version <= migrations.SCHEMA_VERSION:
        raise UnavailableError(
            f"backup {source}",
            f"its schema {version} is newer than this release's {migrations.SCHEMA_VERSION}",
            "restore it with the release that wrote it, or a newer one",
        )


def _require_empty(database: Database) -> None:
    if database.path is not None and not database.path.exists():
        return
    with explained(database), database.connect() as connection:
        migrations.schema_version(connection, database.name)
        counts = count_rows(connection, stored_columns(connection))
    if rows := sum(counts.values()):
        raise EnergyError(
            f"database {database.name}",
            f"is not empty: {rows} rows, {counts.get('records', 0)} of them records",
            "use --force to replace its contents",
        )
