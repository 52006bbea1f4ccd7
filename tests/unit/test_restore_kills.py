"""Tests of a restoration of a database that is killed before it ends.

Afterwards the database has either its earlier contents or the restored contents. The restoration can be
repeated.
"""

from __future__ import annotations

import gzip
import os
import random
import signal
import time
from pathlib import Path

import pytest
from stored_schemas import VERSIONS, load_schema

from slurm_energy.accounting import engine
from slurm_energy.accounting.backups import backup, integrity, restore
from slurm_energy.accounting.schema import migrations, tables

pytestmark = pytest.mark.soak
ROUNDS = int(os.environ.get("SENERGY_KILL_ROUNDS", "40"))


def no_progress(done: int, total: int) -> None:
    pass


def written(location: str | Path, path: Path) -> bytes:
    """Return the contents of a database as a portable backup without its head and its checksum."""
    database = engine.Database(location, read_only=True)
    try:
        backup.write_portable(database, path, no_progress, replace=True)
    finally:
        database.close()
    return gzip.decompress(path.read_bytes()).split(b"\n", 1)[1].rsplit(b"\n", 2)[0]


def restored(source: Path, location: str | Path) -> None:
    database = engine.Database(location)
    try:
        restore.restore(source, database, no_progress, replace=True)
    finally:
        database.close()


def killed_after(seconds: float, source: Path, location: str | Path) -> bool:
    """Restore a backup in a child process, and kill the process after some seconds.

    The function returns whether the process was still at work when it was killed.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            restored(source, location)
            code = 0
        finally:
            os._exit(code)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_a_killed_restoration_changes_all_or_nothing(store_location: str, tmp_path: Path) -> None:
    load_schema(VERSIONS[-1], tmp_path / "first.db")
    migrations.prepare(tmp_path / "first.db")
    written(tmp_path / "first.db", tmp_path / "first")
    with engine.connect(tmp_path / "first.db") as connection, engine.transaction(connection):
        connection.execute(tables.decisions.delete())
    written(tmp_path / "first.db", tmp_path / "second")
    began = time.monotonic()
    restored(tmp_path / "second", store_location)
    length = time.monotonic() - began
    contents = {}
    for name in ("first", "second"):
        restored(tmp_path / name, store_location)
        contents[name] = written(store_location, tmp_path / "check")
    assert contents["first"] != contents["second"]
    draw, present, killed = random.Random(14), "second", 0
    for number in range(ROUNDS):
        name = ("first", "second")[number % 2]
        killed += killed_after(draw.uniform(0, 1.2 * length), tmp_path / name, store_location)
        integrity.verify(store_location)
        found = written(store_location, tmp_path / "check")
        assert found in (contents[present], contents[name])
        restored(tmp_path / name, store_location)
        assert written(store_location, tmp_path / "check") == contents[name]
        present = name
    assert killed > ROUNDS / 4
