"""The supported kinds of databases: SQLite, MariaDB and PostgreSQL.

The module contains everything that differs between them. Statements that run on all kinds of databases are
in the other modules.
"""

from __future__ import annotations

import abc
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from slurm_energy.accounting.streamed_results import end_lost_streams
from slurm_energy.errors import UnavailableError

_BUSY_TIMEOUT_S: Final = 10.0
_CONNECT_TIMEOUT_S: Final = 5
LOCK_WAIT_S: Final = 5
_LOCK_POLL_S: Final = 0.2
_LOCK_TIMEOUT_S: Final = 20  # seconds to wait for locks of rows and tables
_DEAD_PEER_S: Final = 30
_IDLE_SESSION_S: Final = 180  # the server ends idle sessions then; the writer pauses less
_READ_TIMEOUT_S: Final = 600  # seconds to wait for a socket; statements have their own limits
_POOL_SIZE: Final = 8
_STEPS_BETWEEN_CHECKS: Final = 10_000  # steps of SQLite's virtual machine, below a millisecond
_WRITER_LOCK: Final = 0x53454E45  # "SENE"
_MARIADB_LOCK: Final = "concat('slurm-energy.', md5(database()))"  # names are limited to 64 characters
_NO_SUCH_THREAD: Final = 1094  # ER_NO_SUCH_THREAD of MariaDB
_STATEMENT_TIMEOUT: Final = 1969  # ER_STATEMENT_TIMEOUT of MariaDB
_MIN_PACKET_BYTES: Final = 4 << 20  # a record of 1 MiB, of which each character is escaped
MAX_JOINED_BYTES: Final = 1 << 20
"""Length at which MariaDB truncates a text that an aggregate function joins."""
_STATEMENT_BYTES: Final = 65_536  # a statement without its texts
_MODES: Final = "ANSI_QUOTES,PIPES_AS_CONCAT,STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"


class Backend(abc.ABC):
    """Interface to one kind of database: SQLite, MariaDB or PostgreSQL."""

    clock: str = "SELECT extract(epoch FROM clock_timestamp())"
    """Query of the Unix time of the database server in seconds."""
    begin: str = "START TRANSACTION"
    begin_snapshot: str = "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

    @abc.abstractmethod
    def engine(self, url: URL, read_only: bool, statement_limit_s: float | None) -> Engine:
        """Return an SQLAlchemy engine, which opens connections on demand.

        Args:
            url: URL of the database.
            read_only: reject every change on the connections.
            statement_limit_s: maximum seconds that one SQL statement may take on a server; None means no
                limit.
        """

    @abc.abstractmethod
    def lock_writer(self, connection: Connection) -> bool:
        """Take the writer lock, which only one connection can hold, until the connection closes.

        The server may notice late that an earlier writer has ended. The call therefore waits for the lock up
        to `LOCK_WAIT_S`.

        Returns:
            True if the connection holds the lock now, False if another writer holds it.
        """

    @abc.abstractmethod
    def session(self, connection: Connection) -> int:
        """Return the server's session number of a connection."""

    @abc.abstractmethod
    def writer_session(self, connection: Connection) -> int | None:
        """Return the number of the session that holds the writer lock; None if the lock is free."""

    @abc.abstractmethod
    def end_session(self, connection: Connection, session: int) -> None:
        """End another session of the same database user. The server rolls back that session's transaction."""

    def clock_s(self, connection: Connection) -> float:
        """Return the Unix time of the database server in seconds."""
        return float(connection.exec_driver_sql(self.clock).scalar_one())

    @abc.abstractmethod
    def size_bytes(self, connection: Connection) -> int:
        """Return the size of the database."""

    @abc.abstractmethod
    def set_time_limit(self, connection: Connection, limit_s: float | None) -> None:
        """Abort each later statement after `limit_s` seconds; None means to restore the engine's limit."""

    @abc.abstractmethod
    def is_timeout(self, error: DBAPIError) -> bool:
        """Return whether a statement was aborted because of its time limit."""

    def estimated_rows(self, connection: Connection, table: str) -> int | None:
        """Return how many rows the server estimates a table to have; None if there is no estimate."""
        return None

    def problem(self, connection: Connection) -> str:
        """Return the reason why the server is unsuitable for the database; empty if it is suitable."""
        return ""

    def is_in_transaction(self, connection: Connection) -> bool:
        """Return whether the transaction of a connection is open.

        An error may have ended the transaction; see `engine.transaction`.
        """
        return True

    def max_text_bytes(self, connection: Connection) -> int | None:
        """Return the maximum length in bytes of a text that the database can store.

        None means that the limit is never reached.
        """
        return None

    @contextmanager
    def time_limit(self, connection: Connection, limit_s: float) -> Iterator[None]:
        """Context manager that aborts database statements after `limit_s` seconds.

        Raises:
            UnavailableError: a statement was aborted.
        """
        self.set_time_limit(connection, limit_s)
        try:
            yield
        except DBAPIError as error:
            if not self.is_timeout(error):
                raise
            why = f"it takes longer than {limit_s:g} s"
            raise UnavailableError("query", why, "ask for a shorter time or fewer jobs") from error
        finally:
            if not connection.invalidated:
                self.set_time_limit(connection, None)


class SqliteBackend(Backend):
    """A SQLite file in WAL mode. A lock file beside the database file excludes a second controller."""

    # BEGIN takes the lock at once. Otherwise the first change would fail instead of waiting for the lock.
    begin = "BEGIN IMMEDIATE"
    clock = "SELECT (julianday('now') - 2440587.5) * 86400.0"
    begin_snapshot = "BEGIN"

    def engine(self, url: URL, read_only: bool, statement_limit_s: float | None) -> Engine:
        """Return an SQLAlchemy engine for an SQLite database; see `Backend.engine`."""
        arguments = {"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False}
        engine = _engine(url, {"connect_args": arguments})
        # A commit must survive a power cut before a node deletes its copy of a record.
        only = "ON" if read_only else "OFF"
        pragmas = ("foreign_keys = ON", "synchronous = FULL", f"query_only = {only}")

        @event.listens_for(engine, "connect")
        def set_up(connection: sqlite3.Connection, _: Any) -> None:
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}")

        return engine

    def lock_writer(self, connection: Connection) -> bool:
        """Take the writer lock; see `Backend.lock_writer`."""
        return True

    def session(self, connection: Connection) -> int:
        """Return 0, because a SQLite file has no sessions."""
        return 0

    def writer_session(self, connection: Connection) -> int | None:
        """Return None, because a SQLite file has no sessions."""
        return None

    def end_session(self, connection: Connection, session: int) -> None:
        """Do nothing, because a SQLite file has no sessions."""

    def size_bytes(self, connection: Connection) -> int:
        """Return the size of the database."""
        sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(connection.exec_driver_sql(sql).scalar_one())

    def set_time_limit(self, connection: Connection, limit_s: float | None) -> None:
        """Limit the time that SQL statements may take; see `Backend.set_time_limit`."""
        sqlite = _sqlite(connection)
        if limit_s is None:
            sqlite.set_progress_handler(None, 0)
        else:
            end_s = time.monotonic() + limit_s
            sqlite.set_progress_handler(lambda: time.monotonic() > end_s, _STEPS_BETWEEN_CHECKS)

    def is_timeout(self, error: DBAPIError) -> bool:
        """Return whether a statement was aborted because of its time limit."""
        return getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT

    def is_in_transaction(self, connection: Connection) -> bool:
        """Return whether the transaction is still open."""
        # SQLite ends the transaction by itself after some errors, e.g. a full disk.
        return _sqlite(connection).in_transaction


class MariadbBackend(Backend):
    """A database on a MariaDB server."""

    clock = "SELECT unix_timestamp(sysdate(6))"
    begin_snapshot = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"

    def engine(self, url: URL, read_only: bool, statement_limit_s: float | None) -> Engine:
        """Return an engine; see `Backend.engine`."""
        settings = (
            f"sql_mode='{_MODES}', max_statement_time={statement_limit_s or 0},"
            f" innodb_lock_wait_timeout={_LOCK_TIMEOUT_S}, wait_timeout={_IDLE_SESSION_S}, time_zone='+00:00'"
            f", group_concat_max_len={MAX_JOINED_BYTES}"
        )
        socket_timeout_s = statement_limit_s + _DEAD_PEER_S if statement_limit_s else _READ_TIMEOUT_S
        arguments = {
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "read_timeout": socket_timeout_s,
            "write_timeout": socket_timeout_s,
            "charset": "utf8mb4",
            "init_command": f"SET SESSION {settings}",
        }
        options = {"connect_args": arguments, "pool_pre_ping": True, "pool_recycle": _IDLE_SESSION_S // 2}
        engine = end_lost_streams(_engine(url.set(drivername="mariadb+pymysql"), options))
        # A server may be configured for READ COMMITTED, which has no snapshots.
        level = "ISOLATION LEVEL REPEATABLE READ" + (", READ ONLY" if read_only else "")
        event.listen(engine, "connect", lambda driver, _: driver.query(f"SET SESSION TRANSACTION {level}"))
        return engine

    def lock_writer(self, connection: Connection) -> bool:
        """Take the writer lock; see `Backend.lock_writer`."""
        return bool(connection.scalar(text(f"SELECT get_lock({_MARIADB_LOCK}, {LOCK_WAIT_S})")) == 1)

    def session(self, connection: Connection) -> int:
        """Return the session number of a connection; see `Backend.session`."""
        return int(connection.exec_driver_sql("SELECT connection_id()").scalar_one())

    def writer_session(self, connection: Connection) -> int | None:
        """Return the session that holds the writer lock; see `Backend.writer_session`."""
        session = connection.exec_driver_sql(f"SELECT is_used_lock({_MARIADB_LOCK})").scalar_one()
        return None if session is None else int(session)

    def end_session(self, connection: Connection, session: int) -> None:
        """End another session; see `Backend.end_session`."""
        try:
            connection.exec_driver_sql(f"KILL {session:d}")
        except DBAPIError as error:
            if not error.orig or error.orig.args[0] != _NO_SUCH_THREAD:
                raise

    def size_bytes(self, connection: Connection) -> int:
        """Return the size of the database."""
        sql = (
            "SELECT coalesce(sum(data_length + index_length), 0) FROM information_schema.tables"
            " WHERE table_schema = database()"
        )
        return int(connection.execute(text(sql)).scalar_one())

    def estimated_rows(self, connection: Connection, table: str) -> int | None:
        """Return how many rows the server estimates a table to have."""
        same = "table_schema = database() AND table_name = :name"
        sql = text(f"SELECT table_rows FROM information_schema.tables WHERE {same}")
        rows = connection.execute(sql, {"name": table}).scalar()
        return None if rows is None else int(rows)

    def set_time_limit(self, connection: Connection, limit_s: float | None) -> None:
        """Limit the time of statements; see `Backend.set_time_limit`."""
        value = "DEFAULT" if limit_s is None else f"{limit_s:.3f}"
        connection.exec_driver_sql(f"SET SESSION max_statement_time = {value}")

    def is_timeout(self, error: DBAPIError) -> bool:
        """Return whether a statement was aborted because of its time limit."""
        arguments = error.orig.args if error.orig else ()
        return bool(arguments) and arguments[0] == _STATEMENT_TIMEOUT

    def max_text_bytes(self, connection: Connection) -> int | None:
        """Return the maximum length in bytes of a text that this database server can store."""
        return self._packet_bytes(connection) - _STATEMENT_BYTES

    def problem(self, connection: Connection) -> str:
        """Return the reason why the server is unsuitable for the database; empty if it is suitable."""
        packet_bytes = self._packet_bytes(connection)
        if packet_bytes >= _MIN_PACKET_BYTES:
            return ""
        return f"max_allowed_packet is {packet_bytes}: set at least {_MIN_PACKET_BYTES}, better 16777216"

    def _packet_bytes(self, connection: Connection) -> int:
        return int(connection.execute(text("SELECT @@max_allowed_packet")).scalar_one())


class PostgresqlBackend(Backend):
    """A database on a PostgreSQL server."""

    def engine(self, url: URL, read_only: bool, statement_limit_s: float | None) -> Engine:
        """Return an engine; see `Backend.engine`."""
        settings = {
            "statement_timeout": round((statement_limit_s or 0) * 1000),
            "lock_timeout": _LOCK_TIMEOUT_S * 1000,
            "default_transaction_read_only": "on" if read_only else "off",
            "timezone": "UTC",
            "jit": "off",  # slower than the queries, but starts for large tables
            # The server notices the loss of a controller's host, and releases the lock of the writer.
            "tcp_keepalives_idle": _DEAD_PEER_S,
            "tcp_keepalives_interval": 5,
            "tcp_keepalives_count": 3,
        }
        arguments = {
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "keepalives_idle": _DEAD_PEER_S,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": _DEAD_PEER_S * 1000,
            "client_encoding": "utf8",
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        }
        options = {"connect_args": arguments, "pool_pre_ping": True}
        return _engine(url.set(drivername="postgresql+psycopg"), options)

    def lock_writer(self, connection: Connection) -> bool:
        """Take the writer lock; see `Backend.lock_writer`."""
        lock = text(f"SELECT pg_try_advisory_lock({_WRITER_LOCK})")
        end_s = time.monotonic() + LOCK_WAIT_S
        while not connection.execute(lock).scalar_one():
            if time.monotonic() > end_s:
                return False
            time.sleep(_LOCK_POLL_S)
        return True

    def session(self, connection: Connection) -> int:
        """Return the session number of a connection; see `Backend.session`."""
        return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    def writer_session(self, connection: Connection) -> int | None:
        """Return the session that holds the writer lock; see `Backend.writer_session`."""
        sql = (
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 0"
            f" AND objid = {_WRITER_LOCK} AND objsubid = 1"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        session = connection.exec_driver_sql(sql).scalar_one_or_none()
        return None if session is None else int(session)

    def end_session(self, connection: Connection, session: int) -> None:
        """End another session; see `Backend.end_session`."""
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({session:d})").close()

    def size_bytes(self, connection: Connection) -> int:
        """Return the size of the database."""
        return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())

    def estimated_rows(self, connection: Connection, table: str) -> int | None:
        """Return how many rows the server estimates a table to have."""
        sql = text("SELECT reltuples FROM pg_class WHERE oid = CAST(:name AS regclass)")
        rows = connection.execute(sql, {"name": table}).scalar_one()
        return int(rows) if rows >= 0 else None  # -1: never analysed

    def set_time_limit(self, connection: Connection, limit_s: float | None) -> None:
        """Limit the time of statements; see `Backend.set_time_limit`."""
        value = "DEFAULT" if limit_s is None else f"{limit_s * 1000:.0f}"
        connection.exec_driver_sql(f"SET statement_timeout = {value}")

    def is_timeout(self, error: DBAPIError) -> bool:
        """Return whether a statement was aborted because of its time limit."""
        return getattr(error.orig, "sqlstate", None) == "57014"  # query_canceled

    def problem(self, connection: Connection) -> str:
        """Return the reason why the server is unsuitable for the database; empty if it is suitable."""
        encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
        return "" if encoding == "UTF8" else f"its encoding is {encoding}; create it with ENCODING 'UTF8'"


_BACKENDS: Final[dict[str, Backend]] = {
    "sqlite": SqliteBackend(),
    "mariadb": MariadbBackend(),
    "postgresql": PostgresqlBackend(),
}


def backend_named(name: str) -> Backend:
    """Return the backend with the name `sqlite`, `mariadb` or `postgresql`."""
    return _BACKENDS[name]


def backend_of(connection: Connection) -> Backend:
    """Return the backend of an open connection."""
    return _BACKENDS[connection.dialect.name]


def _engine(url: URL, options: dict[str, Any]) -> Engine:
    # AUTOCOMMIT leaves the begin and the end of transactions to `engine.transaction`.
    return create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
        poolclass=QueuePool,
        pool_size=_POOL_SIZE,
        **options,
    )


def _sqlite(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver
