"""The writer lock of a database, which only one process can hold.

The holder is senergyctld, or a command that replaces or upgrades the database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from slurm_energy.accounting.backends import backend_of
from slurm_energy.accounting.engine import Database, explained
from slurm_energy.errors import AlreadyRunningError, UnavailableError

KEEP_INTERVAL_S: Final = 60.0
"""Interval at which an idle connection that holds the lock is used. MariaDB ends idle sessions."""


@contextmanager
def writer_lock(database: Database) -> Iterator[None]:
    """Context manager with which a command holds the writer lock.

    Raises:
        AlreadyRunningError: senergyctld, or another command, holds the lock.
        UnavailableError: the database or its lock file cannot be opened.
    """
    if database.path is not None:
        with _explained_holder(database):
            descriptor = lock_file(database.path)
        try:
            yield
        finally:
            os.close(descriptor)
        return
    with contextlib.ExitStack() as stack:
        with explained(database):
            connection = stack.enter_context(database.connect())
        with _explained_holder(database):
            lock_connection(connection, database.name)
        with kept_session(connection):
            yield


@contextmanager
def kept_session(connection: Connection) -> Iterator[None]:
    """Context manager that keeps a connection from being idle, so that the server does not end its session.

    A connection whose session ends loses the writer lock. The block must not use the connection. If the
    session ends nevertheless, the connection is invalidated.
    """
    ended = threading.Event()

    def keep() -> None:
        with contextlib.suppress(SQLAlchemyError):
            while not ended.wait(KEEP_INTERVAL_S):
                connection.exec_driver_sql("SELECT 1").close()

    thread = threading.Thread(target=keep, name="database-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _explained_holder(database: Database) -> Iterator[None]:
    """Context manager that changes the error of a writer lock that another process holds.

    The new error says what to do before the command can run: stop senergyctld.
    """
    try:
        yield
    except AlreadyRunningError:
        why = "senergyctld, or another command, is running"
        raise AlreadyRunningError(f"database {database.name}", why, "systemctl stop senergyctld") from None


def lock_file(path: Path) -> int:
    """Create and lock the lock file of a SQLite file. Return its descriptor; closing it unlocks.

    The lock file is separate from the database file, because closing any descriptor of the database file
    would drop SQLite's locks.

    Args:
        path: the SQLite file.

    Raises:
        AlreadyRunningError: another process holds the lock.
        UnavailableError: the lock file cannot be opened.
    """
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        adopt_owner(lock)
    except OSError as error:
        raise UnavailableError(f"database lock {lock}", error.strerror or str(error)) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise AlreadyRunningError(
            f"database lock {lock}", "held by another senergyctld", "stop it or name another database"
        ) from None
    return descriptor


def lock_connection(connection: Connection, name: str) -> None:
    """Take the writer lock of a database on a server until the connection closes.

    Args:
        connection: connection to the database.
        name: location of the database, for the error message.

    Raises:
        AlreadyRunningError: another connection holds the lock.
    """
    if not backend_of(connection).lock_writer(connection):
        raise AlreadyRunningError(
            f"database {name}", "used by another senergyctld", "stop it or name another database"
        )


def adopt_owner(path: Path) -> None:
    """Change the owner of a file that root created to the owner of the file's directory.

    The owner of the directory is the user who runs senergyctld.

    Raises:
        OSError: the file or directory does not exist.
    """
    if os.geteuid() != 0:
        return
    owner, present = path.parent.stat(), path.lstat()
    # senergyctld's unit lacks the capability, and its files already belong to the right user.
    if (present.st_uid, present.st_gid) != (owner.st_uid, owner.st_gid):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
