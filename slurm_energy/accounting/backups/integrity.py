"""Integrity check of a database: its pages, foreign keys, tables and columns. The check only reads."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from slurm_energy.accounting.engine import Database, Location, connect, error_reason
from slurm_energy.accounting.schema.migrations import columns_added_after, schema_version, upgrade
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.quantities import shown

_MAX_PROBLEMS: Final = 3
_MAX_ROWS: Final = 100


class DamagedDatabaseError(EnergyError):
    """Error: the contents of the database cannot come from the database software or from senergyctld."""


def verify(location: Location) -> None:
    """Check the integrity of an existing database.

    For a SQLite file, the pages and foreign keys are checked as well as the tables and their columns. A
    server checks its pages and foreign keys itself, so only tables and columns are checked.

    Raises:
        DamagedDatabaseError: the database is damaged. The message names the first problems and the remedy.
        UnavailableError: the database cannot be read, is not one of slurm-energy, or was written by a newer
            release.
    """
    database = Database(location, read_only=True)
    try:
        with database.connect() as connection:
            problems = _problems(connection, database.name)
    except DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", None)
        damaged = isinstance(error.orig, sqlite3.DatabaseError) and code != sqlite3.SQLITE_NOTADB
        if not damaged or isinstance(error.orig, sqlite3.OperationalError):
            raise UnavailableError(f"database {database.name}", error_reason(error)) from None
        problems = [error_reason(error)]
    finally:
        database.close()
    if problems:
        raise _damaged(database, problems)


def _damaged(database: Database, problems: Sequence[str]) -> DamagedDatabaseError:
    more = len(problems) - _MAX_PROBLEMS
    details = "; ".join(shown(problem, 120) for problem in problems[:_MAX_PROBLEMS])
    todo = "stop senergyctld, then restore a backup"
    if database.path is not None:
        name = shlex.quote(str(database.path))
        todo = (
            "stop senergyctld, copy the file, then restore a backup "
            f"or save what can be read: senergy db recover {name} {name}.new"
        )
    return DamagedDatabaseError(
        f"database {database.name}",
        "damaged: " + details + (f"; and {more} more" if more > 0 else ""),
        todo,
    )


def _problems(connection: Connection, name: str) -> list[str]:
    if connection.dialect.name != "sqlite":
        return schema_problems(connection, schema_version(connection, name))
    pages = [row[0] for row in connection.exec_driver_sql(f"PRAGMA integrity_check({_MAX_ROWS})")]
    if pages != ["ok"]:
        return [line for text in pages for line in text.splitlines() if not line.startswith("***")] or pages
    problems = schema_problems(connection, schema_version(connection, name))
    rows = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(_MAX_ROWS)
    return problems + [
        f"row {row[1]} of {row[0]} refers to a row that {row[2]} does not have" for row in rows
    ]


def schema_problems(connection: Connection, version: int) -> list[str]:
    """Return the tables and columns that the database lacks although its schema version requires them."""
    if version == 0:
        return []
    with connect(":memory:") as model:
        upgrade(model, 0, version)
        expected = _columns(model)
    for table, name in columns_added_after(version):
        expected.get(table, set()).discard(name)
    actual = _columns(connection)
    missing = [f"table {table} is missing" for table in expected if table not in actual]
    for table in expected.keys() & actual.keys():
        missing += [f"column {table}.{name} is missing" for name in expected[table] - actual[table]]
    return sorted(missing)


def _columns(connection: Connection) -> dict[str, set[str]]:
    inspector = inspect(connection)
    return {
        table: {str(column["name"]) for column in inspector.get_columns(table)}
        for table in inspector.get_table_names()
    }
