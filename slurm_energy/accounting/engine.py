"""Connections to the database of senergyctld: a SQLite file, or a MariaDB or PostgreSQL server.

Only one thread of one process, senergyctld, writes. Any number of threads read. On every kind of database, a
statement outside of `transaction` is committed at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import (
    DataError,
    IntegrityError,
    InterfaceError,
    ProgrammingError,
    SQLAlchemyError,
    StatementError,
)

from slurm_energy.accounting.backends import backend_named, backend_of
from slurm_energy.config.database_location import DatabaseLocation, parse_database
from slurm_energy.errors import UnavailableError

_IN_TRANSACTION: Final = "slurm_energy.in_transaction"
_FENCE: Final = "slurm_energy.fence"

Location = DatabaseLocation | Path | str
"""Identification of a database: a parsed location, the path of a SQLite file, or a URL."""


class Database:
    """A database with a pool of connections. The constructor opens no connection.

    Args:
        location: the database.
        read_only: whether the connections reject every change.
        statement_limit_s: maximum seconds of a statement on a server; None means no limit.

    Attributes:
        path: the SQLite file; None for a database on a server.
        name: location of the database for messages, without a password.
    """

    def __init__(
        self, location: Location, *, read_only: bool = False, statement_limit_s: float | None = None
    ) -> None:
        self.location = database_location(location)
        self.path = self.location.path
        self.name = str(self.location)
        backend = backend_named(self.location.backend)
        self.engine = backend.engine(_url(self.location), read_only, statement_limit_s)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Context manager that takes a connection from the pool.

        At the end of the block, the connection returns to the pool.

        No transaction is begun; use `transaction` for that.

        Raises:
            UnavailableError: a file that the URL names, such as a certificate, cannot be read.
        """
        try:
            opened = self.engine.connect()
        except OSError as error:  # not converted by the driver
            raise UnavailableError(f"database {self.name}", error_reason(error), "see its URL") from None
        with opened as connection:
            yield connection

    def close(self) -> None:
        """Close all idle connections."""
        self.engine.dispose()


@contextmanager
def connect(location: Location, *, read_only: bool = False) -> Iterator[Connection]:
    """Context manager that opens one connection and closes it at the end of the `with` block.

    No transaction is begun; use `transaction` for that.

    Args:
        location: the database.
        read_only: whether the connection rejects every change.
    """
    database = Database(location, read_only=read_only)
    try:
        with database.connect() as connection:
            yield connection
    finally:
        database.close()


@contextmanager
def transaction(connection: Connection, *, snapshot: bool = False) -> Iterator[None]:
    """Run the `with` block in a transaction.

    The transaction is committed at the end of the block, or rolled back on any exception.

    Transactions cannot be nested; use `savepoint` inside of one.

    Args:
        connection: connection to the database.
        snapshot: True means that the transaction only reads, and that it sees the state of one moment.
            Writers do not wait for a transaction of this kind.
    """
    if connection.info.get(_IN_TRANSACTION):
        raise RuntimeError("a transaction inside of a transaction")
    backend = backend_of(connection)
    connection.exec_driver_sql(backend.begin_snapshot if snapshot else backend.begin)
    connection.info[_IN_TRANSACTION] = True
    try:
        if fence := connection.info.get(_FENCE):
            fence(connection)
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        if _is_in_transaction(connection):
            connection.exec_driver_sql("ROLLBACK")
        raise
    finally:
        if not connection.invalidated:
            connection.info.pop(_IN_TRANSACTION, None)


def set_fence(connection: Connection, fence: Callable[[Connection], None]) -> None:
    """Register a function that is called at the start of each later transaction of a connection.

    An error that the function raises ends the transaction.
    """
    connection.info[_FENCE] = fence


@contextmanager
def savepoint(connection: Connection, name: str) -> Iterator[None]:
    """Run a `with` block inside a transaction. An exception undoes only the changes of this block."""
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


def database_location(location: Location) -> DatabaseLocation:
    """Parse the path of a SQLite file or the URL of a database server.

    Raises:
        UnavailableError: not a URL of a supported database.
    """
    if isinstance(location, DatabaseLocation):
        return location
    if isinstance(location, Path) or "://" not in location:
        return DatabaseLocation("sqlite", Path(location), f"sqlite:///{location}")
    try:
        return parse_database(location)
    except ValueError as error:
        raise UnavailableError("database", str(error)) from None


def error_reason(error: BaseException) -> str:
    """Return the reason of a database or file error as one line of text.

    The SQL statement and its values are left out.
    """
    if isinstance(error, StatementError) and error.orig is not None:
        return error_reason(error.orig)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if len(error.args) > 1 and isinstance(error.args[1], str):  # number and text
        return " ".join(error.args[1].split())
    return " ".join(str(error).split()) or type(error).__name__


def value_errors(connection: Connection) -> tuple[type[Exception], ...]:
    """Return the classes of exceptions that are caused by an invalid value of a row.

    Other exceptions concern the whole database, for example a full disk.

    `ProgrammingError` is among them for SQLite only. SQLite's driver raises this error for values that it
    cannot bind, whereas servers raise the same error if a permission or a table is missing.
    """
    errors = (DataError, IntegrityError, OverflowError, ValueError)
    return (*errors, InterfaceError, ProgrammingError) if connection.dialect.name == "sqlite" else errors


@contextmanager
def explained(database: Database) -> Iterator[None]:
    """Convert database and file errors in the `with` block to UnavailableError."""
    try:
        yield
    except BrokenPipeError:  # of the output, not of the database
        raise
    except (OSError, SQLAlchemyError) as error:
        raise UnavailableError(f"database {database.name}", error_reason(error)) from None


def _url(location: DatabaseLocation) -> URL:
    if location.path is not None:
        return URL.create("sqlite", database=os.fspath(location.path))
    return make_url(location.url).set(password=location.password)


def _is_in_transaction(connection: Connection) -> bool:
    """Return whether a connection is still in the transaction that was begun on it.

    The result is False if the connection has been closed or has failed.
    """
    if connection.invalidated or connection.closed or not connection.info.get(_IN_TRANSACTION):
        return False
    return backend_of(connection).is_in_transaction(connection)
