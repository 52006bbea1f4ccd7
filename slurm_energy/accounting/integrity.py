"""Integrity check of a database: its pages, foreign keys, tables and columns. It only reads."""

from __future__ import annotations

import shlex
import sqlite3
from pathlib import Path
from typing import Final

from slurm_energy.accounting.database import MIGRATIONS, connect, schema_version
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.quantities import shown

_MAX_PROBLEMS: Final = 3
_MAX_ROWS: Final = 100


class DamagedDatabaseError(EnergyError):
    """The database file contains data that neither SQLite nor senergyctld wrote."""


def verify(path: Path) -> None:
    """Check the integrity of an existing database file.

    Raises:
        DamagedDatabaseError: names the first problems and the remedy.
        UnavailableError: the file cannot be read, is not a database of slurm-energy, or was written by a
            newer release.
    """
    try:
        with connect(path, read_only=True) as connection:
            problems = _problems(connection, path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) or error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise UnavailableError(f"database {path}", str(error)) from None
        problems = [str(error)]
    if not problems:
        return
    more = len(problems) - _MAX_PROBLEMS
    details = "; ".join(shown(problem, 120) for problem in problems[:_MAX_PROBLEMS])
    name = shlex.quote(str(path))
    raise DamagedDatabaseError(
        f"database {path}",
        "damaged: " + details + (f"; and {more} more" if more > 0 else ""),
        "stop senergyctld, copy the file, then restore a backup "
        f"or save what can be read: sqlite3 {name} .recover | sqlite3 {name}.new",
    )


def _problems(connection: sqlite3.Connection, path: Path) -> list[str]:
    pages = [row[0] for row in connection.execute(f"PRAGMA integrity_check({_MAX_ROWS})")]
    if pages != ["ok"]:
        return [line for text in pages for line in text.splitlines() if not line.startswith("***")] or pages
    problems = _schema_problems(connection, schema_version(connection, path))
    rows = connection.execute("PRAGMA foreign_key_check").fetchmany(_MAX_ROWS)
    return problems + [
        f"row {row[1]} of {row[0]} refers to a row that {row[2]} does not have" for row in rows
    ]


def _schema_problems(connection: sqlite3.Connection, version: int) -> list[str]:
    """Return the tables and columns that the migrations up to `version` create and the database lacks."""
    with sqlite3.connect(":memory:") as model:
        for migration in MIGRATIONS[:version]:
            model.executescript(migration)
        expected = _columns(model)
    model.close()
    actual = _columns(connection)
    missing = [f"table {table} is missing" for table in expected if table not in actual]
    for table in expected.keys() & actual.keys():
        missing += [f"column {table}.{name} is missing" for name in expected[table] - actual[table]]
    return sorted(missing)


def _columns(connection: sqlite3.Connection) -> dict[str, set[str]]:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    sql = "SELECT name FROM pragma_table_info(?)"
    return {table: {name for (name,) in connection.execute(sql, [table])} for table in tables}
