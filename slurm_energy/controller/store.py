"""Access to the database for asyncio: one thread writes, a few read, and the event loop never waits."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from slurm_energy.accounting import migrations
from slurm_energy.accounting.engine import Database, error_reason, time_limit
from slurm_energy.errors import AlreadyRunningError, UnavailableError

_READERS: Final = 8  # more than the concurrent requests of ordinary users
P = ParamSpec("P")
R = TypeVar("R")


class Store:
    """The database with its threads. They run functions of the package `accounting` on their connections.

    A lock file beside the database prevents two controllers from sharing it.

    Raises:
        UnavailableError: the database cannot be used, see `migrations.prepare`.
        AlreadyRunningError: another controller has locked it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1
        if path.parent.is_dir():  # otherwise `prepare` reports the error
            self._lock = _lock_file(path.with_name(path.name + ".lock"))
        try:
            migrations.prepare(path)
        except BaseException:
            self._release()
            raise
        self._writer = ThreadPoolExecutor(1, "database-writer")
        self._readers = ThreadPoolExecutor(_READERS, "database-reader")
        self._written, self._read = Database(path), Database(path, read_only=True)
        self._connections = ExitStack()
        self._connection: Connection | None = None

    async def write(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function on the connection of the writing thread and return its result.

        The function gets the connection and the other arguments.

        Raises:
            UnavailableError: the database refused, e.g. no space; nothing was changed.
        """
        return await self._run(self._writer, lambda: function(self._writer_connection(), *args, **kwargs))

    async def read(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function on the connection of a reading thread and return its result.

        The function gets the connection and the other arguments.

        Raises:
            UnavailableError: the database refused.
        """

        def call() -> R:
            with self._read.connect() as connection:
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

        Its queries are aborted after `limit_s` seconds.

        Raises:
            UnavailableError: the database refused, or the time is over.
        """

        def bounded(connection: Connection) -> R:
            with time_limit(connection, limit_s):
                return function(connection, *args, **kwargs)

        return await self.read(bounded)

    def close(self) -> None:
        """Wait for running work to end and close all connections."""
        self._readers.shutdown(cancel_futures=True)
        self._writer.submit(self._connections.close)
        self._writer.shutdown()
        self._read.close()
        self._written.close()
        self._release()

    async def _run(self, executor: ThreadPoolExecutor, call: Callable[[], R]) -> R:
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, call)
        except SQLAlchemyError as error:
            raise UnavailableError(f"database {self._written.name}", error_reason(error)) from error

    def _writer_connection(self) -> Connection:
        if self._connection is None or self._connection.invalidated:
            self._connections.close()
            self._connection = self._connections.enter_context(self._written.connect())
        return self._connection

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock_file(path: Path) -> int:
    """Create a lock file, lock it and return its descriptor.

    It is separate from the database, because closing any descriptor of the database would drop SQLite's
    locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UnavailableError(f"database lock {path}", error.strerror or str(error)) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise AlreadyRunningError(
            f"database lock {path}", "held by another senergyctld", "stop it or name another database"
        ) from None
    return descriptor
