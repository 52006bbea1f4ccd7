"""The schema version of a database, and the steps from each version to the next.

To change the schema, change `tables.py`, write a function `_step_N(connection)` in this module and append it
to `STEPS`. N is the version that the step produces; the numbers have no gaps. The function runs in a
transaction on SQLite, MariaDB and PostgreSQL alike. It uses portable statements and the functions
`create_tables`, `add_columns` and `create_indexes`. These functions take their definitions from `tables.py`
and skip tables, columns and indexes that exist. Portable statements are
`connection.execute(sqlalchemy.text(...))` or SQLAlchemy Core. MariaDB commits each definition at once, so an
interrupted step is repeated from its start: write each change such that a repetition has no effect. A step
that has been released is never edited. A new database on a server gets all tables at once. For a new SQLite
file all steps run, so a test of a step only needs to call `prepare`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Column, Connection, Index, Table, case, func, inspect, select, text
from sqlalchemy.schema import CreateColumn

from slurm_energy.accounting.backends import backend_of
from slurm_energy.accounting.engine import Database, Location, explained, transaction
from slurm_energy.accounting.schema import (
    adjustment_tables,
    lease_tables,
    observation_tables,
    tables,
    usage_tables,
)
from slurm_energy.accounting.schema.sqlite_steps import SQLITE_STEPS
from slurm_energy.errors import UnavailableError

_APPLICATION_ID: Final = 0x53454E45  # "SENE"; identifies a SQLite file as a database of slurm-energy

_HOUR_S: Final = 3600
_DAY_S: Final = 86400

# Columns that a step adds to a table of an earlier step. The earlier step takes the table from today's
# `tables.py`, so it creates these columns as well. A database from before the later step lacks them.
_ADDED_COLUMNS: Final[dict[int, tuple[Column[Any], ...]]] = {
    9: (tables.jobs.c.qos, tables.jobs.c.allocated, tables.periods.c.usage_group),
    13: (tables.jobs.c.exit_code, tables.jobs.c.step_exit_code),
    14: (usage_tables.usage_runs.c.suspended_s,),
}


def _step_7(connection: Connection) -> None:
    """Add the database tables of periods: the energy of a node from one time to another."""
    create_tables(connection, tables.node_periods, tables.periods)


def _step_8(connection: Connection) -> None:
    """Migrate the database schema to version 8.

    Add the tables of quotas, and of carbon intensities and prices of the grid.
    """
    create_tables(connection, tables.grid_series, tables.quotas, tables.quota_changes)


def _step_9(connection: Connection) -> None:
    """Add tables for the sums of `senergy report`, and columns for job facts by which the report groups."""
    add_columns(connection, *_ADDED_COLUMNS[9])
    create_tables(connection, *usage_tables.CREATED_BY_STEP_9)
    # Jobs from before this step are grouped like jobs whose facts have changed.
    jobs, changed = tables.jobs.c, usage_tables.usage_changed_jobs
    connection.execute(changed.delete())
    known = select(jobs.cluster, jobs.job_id).distinct()
    connection.execute(changed.insert().from_select(["cluster", "job_id"], known))


def _step_10(connection: Connection) -> None:
    """Migration step 10 of the database: add the tables of the lease of the active controller."""
    create_tables(connection, *lease_tables.ALL)


def _step_11(connection: Connection) -> None:
    """Migrate the database to schema 11: add the table of observations of jobs.

    Observations are sampled signals and reported steps.
    """
    create_tables(connection, *observation_tables.ALL)


def _step_12(connection: Connection) -> None:
    """Migrate the database to schema 12: add the tables of adjustments.

    The new tables hold permissions, trials, and the runs that took part in trials.
    """
    create_tables(connection, *adjustment_tables.ALL)


def _step_13(connection: Connection) -> None:
    """Migrate the database to schema version 13.

    The migration adds columns for the exit codes of jobs and of their steps.
    """
    add_columns(connection, *_ADDED_COLUMNS[13])


def _step_14(connection: Connection) -> None:
    """Migrate the database from schema version 13 to 14.

    The migration adds a table for the energy of each hour of a day, and columns for the time in which jobs
    were suspended.
    """
    _count_hours(connection)
    add_columns(connection, *_ADDED_COLUMNS[14])
    jobs, changed = tables.jobs.c, usage_tables.usage_changed_jobs
    known = select(changed.c.job_id).where(changed.c.cluster == jobs.cluster, changed.c.job_id == jobs.job_id)
    suspended = (jobs.end - jobs.start > jobs.elapsed_s, ~known.exists())
    counted_again = select(jobs.cluster, jobs.job_id).where(*suspended).distinct()
    connection.execute(changed.insert().from_select(["cluster", "job_id"], counted_again))


def _count_hours(connection: Connection) -> None:
    """Create and fill the database table that holds the energy of each hour of a day.

    The table has one row per day and group (such as user and account), with 24 energies. It is needed
    because the emission factor and the price of electricity vary with time.
    """
    table, sums = usage_tables.usage_day_hours, usage_tables.usage_sums.c
    create_tables(connection, table)
    connection.execute(table.delete())
    day, second = sums.start - sums.start % _DAY_S, sums.start % _DAY_S
    energies = [
        func.sum(case((second == hour * _HOUR_S, sums.total_uj), else_=0))
        for hour, _ in enumerate(usage_tables.HOUR_COLUMNS)
    ]
    whole_hours = (sums.end - sums.start == _HOUR_S, sums.start % _HOUR_S == 0, sums.total_uj != 0)
    days = select(day, sums.usage_group, *energies).where(*whole_hours).group_by(day, sums.usage_group)
    columns = ["start", "usage_group", *usage_tables.HOUR_COLUMNS]
    connection.execute(table.insert().from_select(columns, days))


# Steps to the versions from len(SQLITE_STEPS) + 1 on. Append to it; see above.
STEPS: Final[tuple[Callable[[Connection], None], ...]] = (
    _step_7,
    _step_8,
    _step_9,
    _step_10,
    _step_11,
    _step_12,
    _step_13,
    _step_14,
)

SCHEMA_VERSION: Final = len(SQLITE_STEPS) + len(STEPS)


def columns_added_after(version: int) -> set[tuple[str, str]]:
    """Return the columns that migrations after a schema version add to existing tables.

    Each item is a pair of table name and column name.
    """
    later = (columns for step, columns in _ADDED_COLUMNS.items() if step > version)
    return {(column.table.name, column.name) for columns in later for column in columns}


def prepare(location: Location) -> None:
    """Create the database, or migrate its schema to the current version.

    A new file is readable only by its owner, because its records show the activity of every user.

    Args:
        location: the database.

    Raises:
        UnavailableError: the directory is missing, permission is denied, the database is not one of
            slurm-energy, or a newer release wrote it.
    """
    database = Database(location)
    try:
        _require_directory(database)
        with explained(database):
            if database.path:
                os.close(os.open(database.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            with database.connect() as connection:
                _migrate(connection, database.name)
    finally:
        database.close()


def check(location: Location) -> None:
    """Check whether `prepare` could open the database and migrate its schema to the current version.

    The function creates and changes nothing. If `prepare` would fail, it raises the same error.
    """
    database = Database(location, read_only=True)
    try:
        _require_directory(database)
        with explained(database):
            if database.path is None or database.path.exists():
                with database.connect() as connection:
                    schema_version(connection, database.name)
            elif not os.access(database.path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    finally:
        database.close()


def schema_version(connection: Connection, name: str) -> int:
    """Return the schema version of an open database; 0 if the database is empty.

    Args:
        connection: connection to the database.
        name: location of the database, for the error message.

    Raises:
        UnavailableError: the database is not one of slurm-energy, or a newer release wrote it.
    """
    if connection.dialect.name == "sqlite":
        existing = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
        ours = connection.exec_driver_sql("PRAGMA application_id").scalar_one() == _APPLICATION_ID
    else:
        names = set(inspect(connection).get_table_names())
        existing = len(names)
        ours = tables.schema_version.name in names and names <= {*tables.metadata.tables}
        ours = ours or _is_newer(connection, names)
    if problem := backend_of(connection).problem(connection):
        raise UnavailableError(f"database {name}", problem)
    if not existing:
        return 0
    if not ours:
        raise UnavailableError(f"database {name}", "a database of another program")
    version = connection.execute(text("SELECT max(version) FROM schema_version")).scalar_one() or 0
    if not isinstance(version, int) or version < 0:
        raise UnavailableError(f"database {name}", "its schema version is damaged", "restore a backup")
    if version > SCHEMA_VERSION:
        raise UnavailableError(
            f"database {name}",
            f"its schema {version} is newer than this release's {SCHEMA_VERSION}",
            "run the senergyctld that wrote it, or a newer one",
        )
    return version


def _is_newer(connection: Connection, names: set[str]) -> bool:
    """Return whether a newer release of slurm-energy wrote a database on a server.

    The newer release may have created tables that the installed release does not know.
    """
    if not names >= {tables.schema_version.name, tables.records.name, tables.jobs.name}:
        return False
    columns = {column["name"] for column in inspect(connection).get_columns(tables.schema_version.name)}
    if not columns >= {"version", "applied"}:
        return False
    version = connection.execute(text("SELECT max(version) FROM schema_version")).scalar_one()
    return isinstance(version, int) and version > SCHEMA_VERSION


def create_tables(connection: Connection, *new: Table) -> None:
    """Create the tables that do not exist yet, with their indexes."""
    tables.metadata.create_all(connection, new, checkfirst=True)


def add_columns(connection: Connection, *new: Column[object]) -> None:
    """Add missing columns to the existing tables of the database.

    A column that is NOT NULL needs a `server_default`.
    """
    for column in new:
        existing = {one["name"] for one in inspect(connection).get_columns(column.table.name)}
        if column.name not in existing:
            definition = CreateColumn(column).compile(connection)
            table = connection.dialect.identifier_preparer.quote(column.table.name)
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {definition}")


def create_indexes(connection: Connection, *new: Index) -> None:
    """Create the indexes that do not exist yet."""
    for index in new:
        index.create(connection, checkfirst=True)


def _require_directory(database: Database) -> None:
    if database.path and not database.path.parent.is_dir():
        raise UnavailableError(
            f"database {database.name}",
            f"directory {database.path.parent} does not exist",
            f"create it: install -d -m 0750 {database.path.parent}",
        )


def _migrate(connection: Connection, name: str) -> None:
    version = schema_version(connection, name)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    elif version == 0:
        _create(connection)
        return
    upgrade(connection, version, SCHEMA_VERSION)


def upgrade(connection: Connection, version: int, new_version: int) -> None:
    """Migrate a database from one schema version to a higher version.

    Each step between two versions is a separate transaction.
    """
    for number in range(version, new_version):
        with transaction(connection):
            if number < len(SQLITE_STEPS):
                _run_sqlite_step(connection, number)
            else:
                STEPS[number - len(SQLITE_STEPS)](connection)
            _note_version(connection, number + 1)


def _run_sqlite_step(connection: Connection, number: int) -> None:
    if number == 0:
        connection.exec_driver_sql(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.exec_driver_sql(
            "CREATE TABLE schema_version (version INTEGER NOT NULL, applied REAL NOT NULL)"
        )
    for statement in SQLITE_STEPS[number].split(";"):
        connection.exec_driver_sql(statement)


def _create(connection: Connection) -> None:
    """Create all tables on a server.

    The schema version is written last, so that an interrupted creation is repeated.
    """
    with transaction(connection):
        create_tables(connection, tables.schema_version)
        create_tables(connection, *tables.metadata.sorted_tables)
        _note_version(connection, SCHEMA_VERSION)


def _note_version(connection: Connection, version: int) -> None:
    connection.execute(tables.schema_version.insert(), {"version": version, "applied": time.time()})
