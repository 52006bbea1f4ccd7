"""PostgreSQL server that is filled with the records of a large cluster, for benchmarks.

The data is in a folder, which later runs of the benchmark use again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
import record_rows
import record_statements
from sqlalchemy import Connection

from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.schema import migrations
from slurm_energy_lab.database_servers import DatabaseServer, PostgresqlServer

DATABASE = "senergy"
# Only for the fill, which starts again after an interruption: COPY and CREATE INDEX then write no log.
FILL_SETTINGS = {
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "synchronous_commit": "off",
    "autovacuum": "off",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "256MB",
    "maintenance_work_mem": "400MB",
    "max_parallel_maintenance_workers": "0",
    "jit": "off",
}
JOBS_AT_ONCE = 100_000
PIPE_BYTES = 2**20  # the most that needs no capability
INDEXES_AT_ONCE = 9
MIN_FREE_BYTES = 4e9


@dataclass
class FillState:
    """Progress of filling the benchmark database, kept in the folder so that filling can continue.

    Attributes:
        jobs: number of jobs.
        end: Unix time at which the last job ends.
        rows_s, indexes_s: duration of the two steps (rows, then indexes) in seconds; None means that the
            step is not finished.
        definitions: SQL that creates each secondary index, by the name of the index.
    """

    jobs: int
    end: float
    definitions: dict[str, str]
    rows_s: float | None = None
    indexes_s: float | None = None


@contextlib.contextmanager
def filled_server(folder: Path | None, jobs: int, end: float) -> Iterator[tuple[str, FillState]]:
    """Run a database server that contains the records of some jobs.

    Yield the URL of the database and the state of the filling.

    Args:
        folder: directory of the server; None means a temporary directory. The database in this directory is
            kept. If an earlier run has filled the database, its jobs are used and `jobs` is ignored. If an
            earlier run was interrupted while it created indexes, the creation of indexes is continued. If an
            earlier run was interrupted while it stored jobs, the database is filled again from the start.
        jobs: number of jobs.
        end: Unix time at which the last job ends.
    """
    with PostgresqlServer(directory=folder, settings=FILL_SETTINGS) as server:
        path = server.directory / "fill.json"
        state = FillState(**json.loads(path.read_text())) if path.exists() else None
        place = server.admin_url(DATABASE).render_as_string(hide_password=False)
        if state is None:
            server.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
            server.create_database(DATABASE)
            migrations.prepare(place)
            state = FillState(jobs, end, {})
            with connect(place) as connection:
                _fill_rows(server, connection, state)
            path.write_text(json.dumps(asdict(state)))
        if state.indexes_s is None:
            _create_indexes(server, state)
            server.execute("ANALYZE; CHECKPOINT", DATABASE)
            path.write_text(json.dumps(asdict(state)))
        server.stop()
        server.durable, server.settings = True, {}
        server.start()
        yield place, state


def _fill_rows(server: DatabaseServer, connection: Connection, state: FillState) -> None:
    """Fill the benchmark database with all rows. Its secondary indexes are dropped first."""
    begin_s = time.monotonic()
    rows = record_rows.RecordRows(state.end, state.jobs)
    record_statements.refuse_other_rows(connection, rows, state.jobs)
    state.definitions = _drop_indexes(connection)
    with ThreadPoolExecutor(1) as pool, _session(server) as session, session.transaction():
        sums = pool.submit(record_rows.fill_sums, connection, int(state.end))
        # COPY FREEZE, which spares a second write of each page, needs a table of the same transaction.
        session.execute("TRUNCATE jobs, records RESTART IDENTITY CASCADE")
        for first in range(0, state.jobs, JOBS_AT_ONCE):
            last = min(first + JOBS_AT_ONCE, state.jobs)
            query = record_statements.jobs_query(rows, first, last)
            _copy(server, session, "jobs", record_rows.JOB_COLUMNS, query)
            query = record_statements.records_query(rows, first, last)
            _copy(server, session, "records", record_rows.RECORD_COLUMNS, query)
            print(f"    {last} of {state.jobs} jobs, {time.monotonic() - begin_s:.0f} s", flush=True)
            if shutil.disk_usage(server.directory).free < MIN_FREE_BYTES:
                raise SystemExit(
                    f"scale.py: {server.directory} has less than {MIN_FREE_BYTES / 1e9:g} GB left"
                )
        sums.result()
        for table in ("records", "jobs"):
            last_id = f"(SELECT max(id) FROM {table})"
            session.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {last_id})")
    state.rows_s = round(time.monotonic() - begin_s, 1)


def _drop_indexes(connection: Connection) -> dict[str, str]:
    """Drop the foreign keys, unique constraints and secondary indexes of two tables.

    The tables are `records` and `jobs`. Filling them is faster without indexes.

    Returns:
        The SQL definitions of the unique constraints and of the secondary indexes, by name. They allow to
        create the indexes again.
    """
    definitions = {}
    for table in ("records", "jobs"):
        for name, kind in connection.exec_driver_sql(
            "SELECT conname, contype FROM pg_constraint"
            f" WHERE conrelid = '{table}'::regclass AND contype IN ('u', 'f')"
        ).all():
            if kind == "u":
                sql = f"SELECT indexdef FROM pg_indexes WHERE indexname = '{name}'"
                definitions[name] = connection.exec_driver_sql(sql).scalar_one()
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        for name, definition in connection.exec_driver_sql(
            "SELECT indexname, indexdef FROM pg_indexes"
            f" WHERE tablename = '{table}' AND indexname <> '{table}_pkey'"
        ).all():
            definitions[name] = definition
            connection.exec_driver_sql(f"DROP INDEX {name}")
    return definitions


def _create_indexes(server: DatabaseServer, state: FillState) -> None:
    """Create the indexes that are missing, several in one pass over the table."""
    begin_s = time.monotonic()
    with _session(server) as session:
        existing = {name for (name,) in session.execute("SELECT indexname FROM pg_indexes")}

    def create(name: str) -> None:
        with _session(server) as session:
            session.execute(state.definitions[name].encode())
        print(f"    index {name}, {time.monotonic() - begin_s:.0f} s", flush=True)

    with ThreadPoolExecutor(INDEXES_AT_ONCE) as pool:
        list(pool.map(create, sorted(state.definitions.keys() - existing, reverse=True)))
    state.indexes_s = round(time.monotonic() - begin_s, 1)


def _copy(
    server: DatabaseServer, session: psycopg.Connection, table: str, columns: tuple[str, ...], query: str
) -> None:
    """Copy the rows of a query into a table of the benchmark database.

    A second session runs the query and passes the rows through a pipe, so that two processes share the work.
    """
    pipe = server.data / "rows.pipe"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    shutil.chown(pipe, user=server.data.owner())
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # keeps the size of the buffer
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    ended = threading.Event()

    def generate() -> None:
        try:
            with _session(server) as generator:
                generator.execute(f"COPY ({query}) TO '{pipe}' (FORMAT binary)".encode())
        finally:  # The reader may open the pipe only now, and would wait for another writer.
            while not ended.wait(0.05):
                _release(pipe)

    with ThreadPoolExecutor(1) as pool:
        generated = pool.submit(generate)
        names = ", ".join(f'"{name}"' for name in columns)
        try:
            session.execute(f"COPY {table} ({names}) FROM '{pipe}' (FORMAT binary, FREEZE)".encode())
        finally:
            ended.set()
            os.close(reader)
            _release(pipe)
        generated.result()
    pipe.unlink()


def _release(pipe: Path) -> None:
    """End the wait of a process that opens a named pipe.

    The process would wait for ever, because the process at the other end has failed.
    """
    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


def _session(server: DatabaseServer) -> psycopg.Connection:
    return psycopg.connect(host=str(server.directory), user="postgres", dbname=DATABASE, autocommit=True)
