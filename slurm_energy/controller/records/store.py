"""Access to the database for asyncio.

One thread writes to the database and a few threads read from it. The event loop never waits for the
database.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from slurm_energy.accounting.backends import backend_of
from slurm_energy.accounting.engine import Database, Location, error_reason, explained
from slurm_energy.accounting.schema import migrations
from slurm_energy.accounting.writer_lock import kept_session, lock_connection, lock_file
from slurm_energy.controller.standby.lease import ControllerLease
from slurm_energy.errors import AlreadyRunningError, UnavailableError

_READERS: Final = 8  # more than the concurrent requests of ordinary users
_WRITE_LIMIT_S: Final = 60.0
_IDLE_S: Final = 1.0  # idle time of the writing connection after which it is tested before use
_RETRY_S: Final = 2.0
_KEEP_INTERVAL_S: Final = 60.0
P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)


class Store:
    """The database with its threads, which run functions of the package `accounting` on their connections.

    Only one controller writes to a database. For a SQLite file, a lock file beside it ensures this. On a
    database server, the connection of the writing thread holds a lock; each new connection takes the lock
    again.

    Args:
        location: the database.
        lease: lease of the active controller, without which nothing is written. None means that the cluster
            has only one controller, which needs no lease.

    Attributes:
        path: the SQLite file; None means that the database is on a server.
        name: the location for messages, without a password.

    Raises:
        UnavailableError: the database cannot be used, see `migrations.prepare`.
        AlreadyRunningError: another controller has locked the database.
        LostLeaseError: another controller has the lease.
    """

    def __init__(self, location: Location, lease: ControllerLease | None = None) -> None:
        self._lease = lease
        self._writable = Database(location, statement_limit_s=_WRITE_LIMIT_S)
        self._readable = Database(location, read_only=True)
        self.path, self.name = self._writable.path, self._writable.name
        self._lock = -1
        self._connection: Connection | None = None
        self._used_s = 0.0
        self._absence = _Absence(self.name) if self.path is None else _NoAbsence()
        try:
            self._take(location)
        except BaseException:
            self._release()
            raise
        self._writer = ThreadPoolExecutor(1, "database-writer")
        self._readers = ThreadPoolExecutor(_READERS, "database-reader")
        self._closing = threading.Event()
        if self.path is None:
            threading.Thread(target=self._keep_session, name="database-session", daemon=True).start()

    def _take(self, location: Location) -> None:
        """Lock the database for this process and bring its schema up to date."""
        if self.path is not None:
            if self.path.parent.is_dir():  # otherwise `prepare` reports the error
                self._lock = lock_file(self.path)
        else:
            with explained(self._writable):
                self._connection = self._lock_writer()
        # The connection with the lock is idle during a migration, which may take minutes.
        with nullcontext() if self._connection is None else kept_session(self._connection):
            migrations.prepare(location)
        if self._connection is not None and self._connection.invalidated:
            self._connection.close()
            self._connection = None
        if self._lease is not None:
            with explained(self._writable):
                self._connection = self._connection or self._lock_writer()
                self._lease.enter(self._connection)

    async def write(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function on the connection of the writing thread and return its result.

        The connection and the other arguments of this call are passed to the function.

        Raises:
            UnavailableError: the database refused, e.g. no space; nothing was changed.
        """

        def call() -> R:
            with self._absence.noted():
                connection = self._writer_connection()
                if self._lease is not None:
                    self._lease.check(connection)
                return function(connection, *args, **kwargs)

        return await self._run(self._writer, call)

    async def read(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function that reads the database in a thread, and return its result.

        The function gets a database connection as its first argument, then the other arguments of this call.

        Raises:
            UnavailableError: the database refused.
        """

        def call() -> R:
            with self._absence.noted(), self._readable.connect() as connection:
                return function(connection, *args, **kwargs)

        return await self._run(self._readers, call)

    async def read_within(
        self,
        limit_s: float,
        function: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a function in a reading thread and return its result.

        The database queries of the function are aborted after `limit_s` seconds.

        Raises:
            UnavailableError: the database refused, or `limit_s` is over.
        """

        def bounded(connection: Connection) -> R:
            with backend_of(connection).time_limit(connection, limit_s):
                return function(connection, *args, **kwargs)

        return await self.read(bounded)

    def close(self) -> None:
        """Wait for running work to end and close all connections."""
        self._closing.set()
        self._readers.shutdown(cancel_futures=True)
        self._writer.shutdown()
        self._release()

    async def _run(self, executor: ThreadPoolExecutor, call: Callable[[], R]) -> R:
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, call)
        except SQLAlchemyError as error:
            raise UnavailableError(f"database {self.name}", error_reason(error)) from error

    def _writer_connection(self) -> Connection:
        """Return the connection of the writing thread; open a new connection if the server has closed it."""
        if self._connection is not None and not self._works(self._connection):
            self._connection.close()
            self._connection = None
        if self._connection is None:
            try:
                self._connection = self._connect_writer()
            except AlreadyRunningError as error:
                raise UnavailableError(error.what, error.why, error.todo) from None
        self._used_s = time.monotonic()
        return self._connection

    def _keep_session(self) -> None:
        """Test the session of the writing thread at intervals, so that the server does not end it.

        The server would end an idle session. The lock of the session would then be free, and another writer
        could take over.
        """
        while not self._closing.wait(_KEEP_INTERVAL_S):
            try:
                self._writer.submit(self._test_session)
            except RuntimeError:  # it is being closed
                return

    def _test_session(self) -> None:
        with suppress(UnavailableError, SQLAlchemyError), self._absence.noted():
            self._writer_connection()

    def _works(self, connection: Connection) -> bool:
        if connection.invalidated:
            return False
        if self.path is not None or time.monotonic() - self._used_s < _IDLE_S:
            return True
        try:
            connection.exec_driver_sql("SELECT 1").close()
        except SQLAlchemyError:
            connection.invalidate()
            return False
        return True

    def _connect_writer(self) -> Connection:
        connection = self._lock_writer()
        if self._lease is not None:
            try:
                self._lease.enter(connection)
            except BaseException:
                connection.invalidate()  # ends the session, and with it the lock
                connection.close()
                raise
        return connection

    def _lock_writer(self) -> Connection:
        connection = self._writable.engine.connect()
        try:
            lock_connection(connection, self.name)
        except BaseException:
            connection.close()
            raise
        return connection

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._readable.close()
        self._writable.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class _NoAbsence:
    """Counterpart of `_Absence` for a SQLite file.

    `_Absence` records that a database server does not answer. A SQLite file has no server, so there is
    nothing to record.
    """

    def noted(self) -> AbstractContextManager[None]:
        """Return a context manager without effect.

        It stands in for the one that notes failures of a database server; a SQLite file has no server.
        """
        return nullcontext()


class _Absence:
    """Record of whether the database server answers. Each change is logged once.

    After a failure, requests fail at once until it is time to try the server again.

    Args:
        name: name of the database for messages.
    """

    def __init__(self, name: str) -> None:
        self._what = f"database {name}"
        self._retry_s = 0.0
        self._absent = False
        self._lock = threading.Lock()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Context manager that records whether the server answers in the `with` block.

        Raises:
            UnavailableError: the server does not answer, or did not answer shortly before.
        """
        if self._absent and time.monotonic() < self._retry_s:
            raise self._error()
        try:
            yield
        except OperationalError as error:
            # Without a statement, the connection was refused.
            if not error.connection_invalidated and error.statement is not None:
                raise
            self._retry_s = time.monotonic() + _RETRY_S
            self._change(True, logging.WARNING, error_reason(error))
            raise self._error() from error
        self._change(False, logging.INFO, "answers again")

    def _error(self) -> UnavailableError:
        return UnavailableError(self._what, "the server does not answer", "see the log of senergyctld")

    def _change(self, absent: bool, level: int, reason: str) -> None:
        with self._lock:
            if absent is not self._absent:
                self._absent = absent
                log.log(level, "%s: %s", self._what, reason)
