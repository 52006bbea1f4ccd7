"""Connections to the database of senergyctld: a SQLite file, or a MariaDB or PostgreSQL server.

One thread of one process, senergyctld, writes. Any number of threads read. A statement outside of
`transaction` is committed at once on every kind of database.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError, StatementError

from slurm_energy.errors import UnavailableError

_BUSY_TIMEOUT_S: Final = 10.0
_POOL_SIZE: Final = 8
_STEPS_BETWEEN_CHECKS: Final = 10_000  # steps of SQLite's virtual machine, below a millisecond
_IN_TRANSACTION: Final = "slurm_energy.in_transaction"

# A commit must survive a power cut before a node deletes its copy of a record.
_SQLITE_PRAGMAS: Final = ("foreign_keys = ON", "synchronous = FULL")


class Database:
    """A database and its pool of connections. Creating it opens no connection.

    Args:
        location: path of a SQLite file, or URL of a database.
        read_only: reject every change on the connections.

    Attributes:
        path: the SQLite file; None: a server.
        name: location for messages; it never contains a password.
        read_only: whether the connections reject changes.
    """

    def __init__(self, location: Path | URL | str, *, read_only: bool = False) -> None:
        url = database_url(location)
        self.path = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
        self.name = str(self.path) if self.path else url.render_as_string(hide_password=True)
        self.read_only = read_only
        self.engine = _engine(url, read_only)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Context manager that takes a connection from the pool and returns it at the end of the block.

        It begins no transaction; use `transaction` for that.
        """
        with self.engine.connect() as connection:
            yield connection

    def close(self) -> None:
        """Close all idle connections."""
        self.engine.dispose()


@contextmanager
def connect(location: Path | URL | str, *, read_only: bool = False) -> Iterator[Connection]:
    """Context manager that opens one connection and closes it at the end of the `with` block.

    It begins no transaction; use `transaction` for that.

    Args:
        location: path of a SQLite file, or URL of a database.
        read_only: reject every change on this connection.
    """
    database = Database(location, read_only=read_only)
    try:
        with database.connect() as connection:
            yield connection
    finally:
        database.close()


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run the `with` block in a transaction that is committed at its end, or rolled back on any exception.

    Transactions cannot be nested; use `savepoint` inside of one.
    """
    if connection.info.get(_IN_TRANSACTION):
        raise RuntimeError("a transaction inside of a transaction")
    # SQLite would otherwise take the lock at the first change, and fail instead of waiting for it.
    begin = "BEGIN IMMEDIATE" if connection.dialect.name == "sqlite" else "START TRANSACTION"
    connection.exec_driver_sql(begin)
    connection.info[_IN_TRANSACTION] = True
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise
    finally:
        if not connection.invalidated:
            connection.info.pop(_IN_TRANSACTION, None)


@contextmanager
def savepoint(connection: Connection, name: str) -> Iterator[None]:
    """Run the `with` block of a transaction so that an exception undoes the changes of the block only."""
    connection.exec_driver_sql(f"SAVEPOINT {name}")
    try:
        yield
    except BaseException:
        if _is_in_transaction(connection):
            connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")
        raise
    finally:
        if _is_in_transaction(connection):
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {name}")


def execute_many(connection: Connection, statement: str, rows: Sequence[Any]) -> None:
    """Execute a statement once for each row of values; no rows: do nothing.

    Args:
        connection: connection to the database.
        statement: SQL text with the placeholders of the driver.
        rows: tuples of values.
    """
    if rows:
        connection.exec_driver_sql(statement, list(rows))


@contextmanager
def time_limit(connection: Connection, limit_s: float) -> Iterator[None]:
    """Abort queries in the `with` block that run at the end of `limit_s` seconds.

    Raises:
        UnavailableError: a query was aborted.
    """
    end_s = time.monotonic() + limit_s
    sqlite = connection.connection.dbapi_connection
    assert isinstance(sqlite, sqlite3.Connection)
    sqlite.set_progress_handler(lambda: time.monotonic() > end_s, _STEPS_BETWEEN_CHECKS)
    try:
        yield
    except OperationalError as error:
        if time.monotonic() <= end_s:
            raise
        why = f"it takes longer than {limit_s:g} s"
        raise UnavailableError("query", why, "ask for a shorter time or fewer jobs") from error
    finally:
        sqlite.set_progress_handler(None, 0)


def database_url(location: Path | URL | str) -> URL:
    """Return the SQLAlchemy URL of a path or URL.

    Raises:
        UnavailableError: not a URL of a supported database.
    """
    if isinstance(location, URL):
        return location
    if isinstance(location, Path) or "://" not in location:
        return URL.create("sqlite", database=os.fspath(location))
    return make_url(location)


def error_reason(error: BaseException) -> str:
    """Return the reason of a database or file error in one line, without the statement and its values."""
    if isinstance(error, StatementError) and error.orig is not None:
        return error_reason(error.orig)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def explained(database: Database) -> Iterator[None]:
    """Raise errors of the database and of files in the `with` block as UnavailableError."""
    try:
        yield
    except (OSError, SQLAlchemyError) as error:
        raise UnavailableError(f"database {database.name}", error_reason(error)) from None


def _engine(url: URL, read_only: bool) -> Engine:
    # `isolation_level` leaves the begin and the end of transactions to `transaction`.
    engine = create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
        pool_size=_POOL_SIZE,
        connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        for pragma in (*_SQLITE_PRAGMAS, f"query_only = {'ON' if read_only else 'OFF'}"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _roll_back(connection: Connection) -> None:
    if _is_in_transaction(connection):
        connection.exec_driver_sql("ROLLBACK")


def _is_in_transaction(connection: Connection) -> bool:
    """Whether the connection works and its database still has the transaction that was begun."""
    if connection.invalidated or connection.closed:
        return False
    if connection.dialect.name == "sqlite":
        # SQLite ends the transaction by itself after some errors, e.g. a full disk.
        return bool(getattr(connection.connection.dbapi_connection, "in_transaction", False))
    return bool(connection.info.get(_IN_TRANSACTION))
