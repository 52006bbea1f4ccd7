"""Tests of the store of energy records on a database server (MariaDB or PostgreSQL).

The tests check that only one controller writes, and how the store behaves while the server is absent. They
also cover limits of time and size, and passwords.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import open_munge
import pytest
import sqlalchemy
from sqlalchemy import select
from store_examples import Accounting, item
from test_controller import Controller, refused

from slurm_energy.accounting import backends, engine, writer_lock
from slurm_energy.accounting.backups import integrity
from slurm_energy.accounting.records import record_store
from slurm_energy.accounting.schema import migrations, tables
from slurm_energy.controller.records import store as store_module
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import AlreadyRunningError, UnavailableError
from slurm_energy.records import MAX_SETTING_TEXT
from slurm_energy.reports.trace import encode_trace

pytestmark = pytest.mark.slow
SERVERS = ("mariadb", "postgresql")
LOCK_WAIT_S = "slurm_energy.accounting.backends.LOCK_WAIT_S"
"""Long where the lock must be granted: a server notices late that the earlier session has ended."""
SLEEP = {"mariadb": "SELECT sleep(60)", "postgresql": "SELECT pg_sleep(60)"}


@pytest.fixture(params=SERVERS)
def server(request, database_servers):
    return database_servers.get(request.param)


@pytest.fixture
def location(server, database_servers):
    return database_servers.empty_store(server.name)


@pytest.fixture
def open_store():
    """Return a function that opens a store. All opened stores are closed after the test."""
    opened = []

    def opener(location):
        opened.append(Store(location))
        return opened[-1]

    yield opener
    for store in opened:
        store.close()


def test_a_second_controller_is_refused_until_the_first_ends(location, monkeypatch):
    monkeypatch.setattr(LOCK_WAIT_S, 60)
    first = Store(location)
    monkeypatch.setattr(LOCK_WAIT_S, 0)
    with pytest.raises(AlreadyRunningError, match="used by another senergyctld") as refusal:
        Store(location)
    assert refusal.value.exit_code == 7
    monkeypatch.setattr(LOCK_WAIT_S, 60)
    first.close()
    Store(location).close()


def test_a_writer_that_lost_its_lock_writes_no_more(location, open_store, monkeypatch):
    """A controller that has lost its lock on the database can no longer write to it.

    It loses the lock with its connection. Another controller may then have taken the database.
    """
    monkeypatch.setattr(LOCK_WAIT_S, 60)
    monkeypatch.setattr(store_module, "_IDLE_S", 0.0)
    monkeypatch.setattr(store_module, "_RETRY_S", 0.0)
    first = open_store(location)

    def disconnect(connection):
        connection.invalidate()

    async def story():
        await first.write(disconnect)
        second = open_store(location)
        items, _ = record_store.read_items([item()])
        monkeypatch.setattr(LOCK_WAIT_S, 0)
        with pytest.raises(UnavailableError, match="used by another senergyctld"):
            await first.write(record_store.store, items, 1.0)
        monkeypatch.setattr(LOCK_WAIT_S, 60)
        second.close()
        return await first.write(record_store.store, items, 1.0)

    assert len(asyncio.run(story())[0]) == 1


def test_a_snapshot_needs_no_setting_of_the_server(database_servers):
    """Reports and backups read one moment also if MariaDB is configured for READ COMMITTED."""
    server, location = database_servers.get("mariadb"), database_servers.empty_store("mariadb")
    row = {"cluster": "c", "node": "n", "last_end": 1.0, "last_received": 1.0}
    server.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED")
    try:
        with engine.connect(location, read_only=True) as reader, engine.connect(location) as writer:
            with engine.transaction(reader, snapshot=True):
                assert reader.execute(select(tables.nodes)).all() == []
                writer.execute(tables.nodes.insert(), row)
                assert reader.execute(select(tables.nodes)).all() == []
            with pytest.raises(sqlalchemy.exc.SQLAlchemyError, match="READ ONLY"):
                reader.execute(tables.nodes.delete())
    finally:
        server.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def test_a_long_migration_keeps_the_lock(database_servers, monkeypatch):
    """Another controller of the new release cannot migrate the same database at the same time."""
    location, prepare = database_servers.empty_store("mariadb"), migrations.prepare
    monkeypatch.setattr(backends, "_IDLE_SESSION_S", 2)
    monkeypatch.setattr(writer_lock, "KEEP_INTERVAL_S", 0.2)
    monkeypatch.setattr(LOCK_WAIT_S, 0)

    def slow(where):
        time.sleep(3.5)
        with engine.connect(where) as other, pytest.raises(AlreadyRunningError):
            writer_lock.lock_connection(other, "the database")
        prepare(where)

    monkeypatch.setattr(migrations, "prepare", slow)
    Store(location).close()


def test_a_lock_that_a_migration_has_lost_is_taken_again(server, location, monkeypatch):
    monkeypatch.setattr(writer_lock, "KEEP_INTERVAL_S", 0.05)
    prepare, lease = migrations.prepare, MagicMock()

    def interrupted(where):
        prepare(where)
        (keeper,) = [one for one in threading.enumerate() if one.name == "database-lock"]
        server.kill()
        server.start()
        keeper.join(60)  # it ends when it notices that the session is lost
        assert not keeper.is_alive()

    def check(connection):
        with engine.connect(location) as other, pytest.raises(AlreadyRunningError):
            monkeypatch.setattr(LOCK_WAIT_S, 0)
            writer_lock.lock_connection(other, "the database")

    monkeypatch.setattr(LOCK_WAIT_S, 60)
    monkeypatch.setattr(migrations, "prepare", interrupted)
    lease.enter.side_effect = check
    Store(location, lease).close()
    lease.enter.assert_called_once()


def test_an_idle_controller_takes_its_lock_again(server, location, open_store, monkeypatch):
    for name, seconds in (("_KEEP_INTERVAL_S", 0.05), ("_IDLE_S", 0.0), ("_RETRY_S", 0.0)):
        monkeypatch.setattr(store_module, name, seconds)
    monkeypatch.setattr(LOCK_WAIT_S, 60)
    open_store(location)
    monkeypatch.setattr(LOCK_WAIT_S, 0)
    server.kill()
    server.start()
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            Store(location).close()
        except AlreadyRunningError:
            return
        time.sleep(0.05)
    pytest.fail("the idle controller did not take its lock again")


def test_records_wait_for_a_server_that_is_away(server, location, tmp_path, monkeypatch, caplog):
    """The controller refuses deliveries while its database server is stopped.

    It accepts them again when the server is back, without a restart of the controller.
    """
    open_munge.install(monkeypatch)
    monkeypatch.setattr(store_module, "_RETRY_S", 0.1)
    controller = Controller(tmp_path, location=location)
    caplog.set_level(logging.INFO)

    async def story(c):
        assert (await c.post({"items": [item(job_id=1)]}))[0] == 200
        await asyncio.to_thread(server.stop)
        waiting = {"items": [item(job_id=2, trace=encode_trace(1000.0, 1.0, {"cpu": [5.0]}))]}
        for _ in range(20):
            assert refused(await c.post(waiting), 503, 4, "does not answer")
            assert refused(await c.get("/v1/records"), 503, 4, "does not answer")
        server.start()
        await asyncio.sleep(0.2)
        status, answer = await c.post(waiting)
        assert (status, len(answer["accepted"])) == (200, 1)
        assert (await c.post(waiting))[1] == answer
        found = (await c.get("/v1/records"))[1]["records"]
        assert [r["job_id"] for r in found] == [1, 2]
        return True

    assert controller.session(story)
    assert [r.levelname for r in caplog.records if r.name == "slurm_energy.controller.records.store"] == [
        "WARNING",
        "INFO",
    ]
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING and r.name == "test"]) == 1


def test_a_server_killed_amid_a_transaction_keeps_all_or_nothing(server, location, open_store, monkeypatch):
    monkeypatch.setattr(store_module, "_RETRY_S", 0.0)
    store, items = open_store(location), record_store.read_items([item(job_id=n) for n in range(5)])[0]

    def store_and_crash(connection, items):
        with engine.transaction(connection):
            record_store._insert(connection, items, 1.0)
            server.kill()

    async def story():
        with pytest.raises(UnavailableError):
            await store.write(store_and_crash, items)
        server.start()
        assert await store.read(lambda c: c.execute(select(tables.records.c.id)).all()) == []
        return await store.write(record_store.store, items, 1.0)

    assert len(asyncio.run(story())[0]) == 5


def test_an_endless_query_is_aborted(server, location, open_store):
    store = open_store(location)

    async def story():
        with pytest.raises(UnavailableError, match=r"longer than 0\.2 s: ask for a shorter time"):
            await store.read_within(0.2, lambda c: c.exec_driver_sql(SLEEP[server.name]).fetchall())
        return await store.read_within(30, lambda c: c.exec_driver_sql("SELECT 5").scalar())

    assert asyncio.run(story()) == 5


def test_a_missing_permission_rejects_no_record(server, location):
    """If a permission is missing in the database, records are not rejected.

    They stay in the agents' spools until the permission is granted.
    """
    url = sqlalchemy.make_url(location)
    tables_of_store = "ALL TABLES IN SCHEMA public" if server.name == "postgresql" else "*.*"
    password = "PASSWORD 'secret'" if server.name == "postgresql" else "IDENTIFIED BY 'secret'"
    server.execute(f"CREATE USER reader {password}", url.database)
    server.execute(f"GRANT SELECT ON {tables_of_store} TO reader", url.database)
    items, _ = record_store.read_items([item()])
    try:
        with (
            engine.connect(
                url.set(username="reader", password="secret").render_as_string(False)
            ) as connection,
            pytest.raises(sqlalchemy.exc.DBAPIError),
        ):
            record_store.store(connection, items, 1.0)
    finally:
        if server.name == "postgresql":
            server.execute("DROP OWNED BY reader", url.database)
        server.execute("DROP USER reader", url.database)


def test_a_trace_that_the_server_cannot_take_does_not_block_its_record(location, monkeypatch):
    """A record is stored without its trace if the trace is too large for the database server.

    MariaDB would close the connection on a large trace (max_allowed_packet). The agent would then send the
    record again and again.
    """
    monkeypatch.setattr(record_store, "backend_of", lambda _: SimpleNamespace(max_text_bytes=lambda _: 500))
    accounting = Accounting(location)
    traces = [encode_trace(1000.0, 1.0, {f"gpu[{n}]": [1.0] * 9 for n in range(gpus)}) for gpus in (1, 50)]
    items, _ = record_store.read_items([item(job_id=n, trace=trace) for n, trace in enumerate(traces)])
    with accounting.connect() as connection:
        accepted, refusals = record_store.store(connection, items, 1.0)
    assert len(accepted) == 2
    assert [(r.index, r.outcome) for r in refusals] == [(1, record_store.RefusalOutcome.TRACE_REJECTED)]
    assert [bool(r["trace"]) for r in accounting.find(with_traces=True)] == [True, False]


def test_the_largest_record_and_trace_fit(location):
    accounting = Accounting(location)
    trace = encode_trace(1000.0, 1.0, {"cpu": [1.0]}) | {"more": '"' * (3 << 20)}
    notes = ("'" * MAX_SETTING_TEXT,) * (record_store.MAX_RECORD_BYTES // MAX_SETTING_TEXT - 1)
    accounting.deliver(item(notes=notes), item(job_id=2, trace=trace))
    assert [r["job_id"] for r in accounting.find()] == [1, 2]


def test_missing_columns_are_named(location):
    integrity.verify(location)
    with engine.connect(location) as connection:
        connection.exec_driver_sql("ALTER TABLE nodes RENAME COLUMN last_end TO last")
    try:
        with pytest.raises(integrity.DamagedDatabaseError, match=r"column nodes\.last_end is missing"):
            integrity.verify(location)
    finally:
        with engine.connect(location) as connection:
            connection.exec_driver_sql("ALTER TABLE nodes RENAME COLUMN last TO last_end")
