"""Tests of the private database servers that other tests use.

The data survive a crash of the server. If the process that started a server is killed, neither
the server nor its files remain.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy

from slurm_energy_lab.database_servers import SERVERS

pytestmark = pytest.mark.slow
_OWNER = """
import sys, time
from slurm_energy_lab.database_servers import SERVERS
server = SERVERS[sys.argv[1]]()
print(server.directory, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("name", SERVERS)
def test_data_survive_a_killed_server(name, database_servers):
    with database_servers.database(name) as url:
        server, engine = database_servers.get(name), sqlalchemy.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE a (b INTEGER)")
            connection.exec_driver_sql("INSERT INTO a VALUES (7)")
        engine.dispose()
        server.kill()
        assert not server.running
        server.start()
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT b FROM a").fetchall() == [(7,)]
        engine.dispose()


def test_postgresql_starts_again_although_a_backend_was_busy_when_it_was_killed(database_servers):
    with database_servers.database("postgresql") as url:
        server, engine = database_servers.get("postgresql"), sqlalchemy.create_engine(url)

        def compute() -> None:
            with contextlib.suppress(sqlalchemy.exc.DBAPIError), engine.connect() as connection:
                series = "SELECT generate_series(1, 10000000000)"
                connection.exec_driver_sql(f"SELECT count(*) AS busy FROM ({series}) AS series")

        threading.Thread(target=compute, daemon=True).start()
        active = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%% AS busy %%'"
        deadline = time.monotonic() + 60
        # PostgreSQL shows one transaction the same activity each time, so each look needs its own.
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while connection.exec_driver_sql(active).scalar_one() < 2:  # the query itself is one
                assert time.monotonic() < deadline
                time.sleep(0.02)
        server.kill()
        server.start()
        engine.dispose()


@pytest.mark.parametrize("name", SERVERS)
def test_a_killed_owner_leaves_no_server_and_no_files(name, database_servers):
    database_servers.get(name)  # skips where this server cannot run
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, name], stdout=subprocess.PIPE, text=True)
    directory = Path(owner.stdout.readline().strip())
    assert _processes(directory)
    owner.kill()
    owner.communicate()
    deadline = time.monotonic() + 60
    while (directory.exists() or _processes(directory)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes(directory)
    assert not directory.exists()


def test_a_signal_to_the_group_of_the_owner_leaves_nothing(database_servers):
    database_servers.get("postgresql")
    command = [sys.executable, "-c", _OWNER, "postgresql"]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    directory = Path(owner.stdout.readline().strip())
    os.killpg(owner.pid, signal.SIGKILL)
    owner.communicate()
    deadline = time.monotonic() + 60
    while directory.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not directory.exists()


def _processes(directory):
    """Return the ids of processes whose arguments or working directory contain `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes()
                working = str((entry / "cwd").readlink())
            except OSError:
                continue
            if os.fsencode(directory) in arguments or working.startswith(str(directory)):
                found.append(int(entry.name))
    return found
