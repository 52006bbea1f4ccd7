"""The SQLite database of senergyctld: its file, schema, schema version and connections.

One thread of one process, senergyctld, writes. Any number of threads read. The modules that read and write
records, traces and job facts are next to this one.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError

_APPLICATION_ID: Final = 0x53454E45  # "SENE"; identifies the file as a database of slurm-energy
_BUSY_TIMEOUT_S: Final = 10.0

# Migration i converts schema version i to i + 1. A released migration is never edited: add another one.
MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        submit REAL NOT NULL,
        display_id TEXT NOT NULL,
        name TEXT NOT NULL,
        account TEXT,
        partition TEXT,
        user TEXT,
        state TEXT NOT NULL,
        start REAL,
        "end" REAL,
        elapsed_s REAL,
        nodes INTEGER,
        array_job_id INTEGER,
        array_task_id INTEGER,
        het_job_id INTEGER,
        het_offset INTEGER,
        finished INTEGER NOT NULL,
        updated REAL NOT NULL,
        UNIQUE (cluster, job_id, submit)
    );
    CREATE INDEX jobs_array ON jobs (array_job_id) WHERE array_job_id IS NOT NULL;
    CREATE INDEX jobs_het ON jobs (het_job_id) WHERE het_job_id IS NOT NULL;
    CREATE INDEX jobs_unfinished ON jobs (updated) WHERE NOT finished;

    CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        record_id TEXT NOT NULL UNIQUE,
        cluster TEXT NOT NULL,
        node TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        restart_count INTEGER NOT NULL,
        step TEXT NOT NULL,
        start REAL NOT NULL,
        "end" REAL NOT NULL,
        uid INTEGER NOT NULL,
        user TEXT,
        account TEXT,
        partition TEXT,
        policy TEXT NOT NULL,
        energy_joules REAL,
        received REAL NOT NULL,
        job INTEGER REFERENCES jobs (id),
        body TEXT NOT NULL,
        UNIQUE (node, job_id, start, step, restart_count, cluster)
    );
    CREATE INDEX records_job_id ON records (job_id, start);
    CREATE INDEX records_end ON records ("end");
    CREATE INDEX records_uid ON records (uid, "end");
    CREATE INDEX records_account ON records (account, "end") WHERE account IS NOT NULL;
    CREATE INDEX records_job ON records (job) WHERE job IS NOT NULL;
    CREATE INDEX records_without_job ON records (received, cluster, job_id) WHERE job IS NULL;

    CREATE TABLE traces (
        record INTEGER PRIMARY KEY REFERENCES records (id) ON DELETE CASCADE,
        "end" REAL NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX traces_end ON traces ("end");

    CREATE TABLE nodes (
        cluster TEXT NOT NULL,
        node TEXT NOT NULL,
        last_end REAL NOT NULL,
        last_received REAL NOT NULL,
        PRIMARY KEY (cluster, node)
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE jobs ADD COLUMN time_limit_s REAL;
    ALTER TABLE jobs ADD COLUMN requested TEXT;
    ALTER TABLE jobs ADD COLUMN learned INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX jobs_unlearned ON jobs (updated) WHERE finished AND NOT learned;

    CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        kind BLOB NOT NULL,
        "end" REAL NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX history_kind ON history (kind, "end");
    CREATE INDEX history_end ON history ("end");
    """,
    """
    CREATE TABLE decisions (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        submit REAL NOT NULL,
        time REAL NOT NULL,
        kind TEXT NOT NULL,
        why TEXT NOT NULL,
        details TEXT NOT NULL
    );
    CREATE INDEX decisions_job ON decisions (job_id, submit);
    CREATE INDEX decisions_time ON decisions (time);
    """,
    """
    CREATE TABLE predictions (
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        start REAL NOT NULL,
        predicted_s REAL NOT NULL,
        PRIMARY KEY (cluster, job_id, start)
    ) WITHOUT ROWID;
    CREATE INDEX predictions_start ON predictions (start);
    ALTER TABLE history ADD COLUMN user TEXT;
    UPDATE history SET user = json_extract(body, '$.user');
    CREATE INDEX history_user ON history (user, "end");
    """,
    """
    ALTER TABLE jobs ADD COLUMN tuning_learned INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX jobs_tuning_unlearned ON jobs (updated) WHERE learned AND NOT tuning_learned;

    CREATE TABLE tuning_runs (
        id INTEGER PRIMARY KEY,
        job INTEGER NOT NULL UNIQUE REFERENCES jobs (id),
        owner TEXT NOT NULL,
        hardware TEXT NOT NULL,
        fingerprint TEXT,
        model TEXT,
        workload TEXT NOT NULL,
        "end" REAL NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX tuning_runs_workload ON tuning_runs (owner, workload, hardware, "end");
    CREATE INDEX tuning_runs_model ON tuning_runs (owner, model, hardware, "end") WHERE model IS NOT NULL;
    CREATE INDEX tuning_runs_end ON tuning_runs ("end");

    CREATE TABLE tuning_pins (
        owner TEXT NOT NULL,
        workload TEXT NOT NULL,
        hardware TEXT NOT NULL,
        point TEXT NOT NULL,
        pinned_by TEXT NOT NULL,
        time REAL NOT NULL,
        PRIMARY KEY (owner, workload, hardware)
    ) WITHOUT ROWID;

    CREATE TABLE tuning_starts (
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        restart_count INTEGER NOT NULL,
        hardware TEXT NOT NULL,
        owner TEXT NOT NULL,
        workload TEXT NOT NULL,
        exploration INTEGER NOT NULL,
        time REAL NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (cluster, job_id, restart_count, hardware)
    ) WITHOUT ROWID;
    CREATE INDEX tuning_starts_workload ON tuning_starts (owner, workload, hardware) WHERE exploration;
    CREATE INDEX tuning_starts_time ON tuning_starts (time);
    """,
    """
    CREATE TABLE budget_samples (
        cluster TEXT NOT NULL,
        budget TEXT NOT NULL,
        time REAL NOT NULL,
        span_s REAL NOT NULL,
        limit_watts REAL,
        measured_watts REAL,
        max_measured_watts REAL,
        committed_watts REAL NOT NULL,
        capped_watts REAL NOT NULL,
        headroom_watts REAL,
        over_s REAL NOT NULL,
        PRIMARY KEY (cluster, budget, time)
    ) WITHOUT ROWID;
    CREATE INDEX budget_samples_time ON budget_samples (time);

    CREATE TABLE budget_changes (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL,
        time REAL NOT NULL,
        budget TEXT,
        actor TEXT,
        kind TEXT NOT NULL,
        why TEXT NOT NULL,
        details TEXT NOT NULL
    );
    CREATE INDEX budget_changes_time ON budget_changes (cluster, time);

    CREATE TABLE budget_overrides (
        cluster TEXT NOT NULL,
        budget TEXT NOT NULL,
        watts REAL NOT NULL,
        "end" REAL,
        actor TEXT NOT NULL,
        time REAL NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (cluster, budget)
    ) WITHOUT ROWID;

    CREATE TABLE budget_nodes (
        cluster TEXT NOT NULL,
        node TEXT NOT NULL,
        time REAL NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (cluster, node)
    ) WITHOUT ROWID;
    """,
)
SCHEMA_VERSION: Final = len(MIGRATIONS)


def prepare(path: Path) -> None:
    """Create the database, or migrate its schema to the current version.

    A new file is readable only by its owner, because its records show the activity of every user.

    Args:
        path: database file.

    Raises:
        UnavailableError: the directory is missing, permission is denied, the file is not a database of
            slurm-energy, or a newer release wrote it.
    """
    with _explained(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with connect(path) as connection:
            _migrate(connection, path)


def check(path: Path) -> None:
    """Raise the error that `prepare` would raise for this file, without creating or changing anything."""
    with _explained(path):
        if path.exists():
            with connect(path, read_only=True) as connection:
                schema_version(connection, path)
        elif not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def connect(path: Path, *, read_only: bool = False) -> Iterator[sqlite3.Connection]:
    """Context manager that opens a connection and closes it at the end of the `with` block.

    It begins no transaction; use `transaction` for that.

    Args:
        path: database file.
        read_only: reject every change on this connection.
    """
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        # A commit must survive a power cut before a node deletes its copy of a record.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA query_only = {'ON' if read_only else 'OFF'}")
        yield connection
    finally:
        connection.close()


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the `with` block in a transaction that is committed at its end, or rolled back on any exception."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    if not path.parent.is_dir():
        raise UnavailableError(
            f"database {path}",
            f"directory {path.parent} does not exist",
            f"create it: install -d -m 0750 {path.parent}",
        )
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnavailableError(f"database {path}", reason) from None


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version = schema_version(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    for number in range(version, SCHEMA_VERSION):
        with transaction(connection):
            if number == 0:
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(
                    "CREATE TABLE schema_version (version INTEGER NOT NULL, applied REAL NOT NULL)"
                )
            for statement in MIGRATIONS[number].split(";"):
                connection.execute(statement)
            connection.execute("INSERT INTO schema_version VALUES (?, ?)", (number + 1, time.time()))


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version of an open database; 0: the file is empty.

    Args:
        connection: connection to the database.
        path: database file, for the error message.

    Raises:
        UnavailableError: the file is not a database of slurm-energy, or a newer release wrote it.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        return 0
    if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
        raise UnavailableError(f"database {path}", "a SQLite database of another program")
    (version,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    if version > SCHEMA_VERSION:
        raise UnavailableError(
            f"database {path}",
            f"its schema {version} is newer than this release's {SCHEMA_VERSION}",
            "run the senergyctld that wrote it, or a newer one",
        )
    return int(version)
