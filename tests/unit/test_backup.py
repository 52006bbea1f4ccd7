"""Backups restore into each kind of database, completely or not at all."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_schemas import VERSIONS, load_schema, rows_of

from slurm_energy.accounting import engine
from slurm_energy.accounting.backups import backup, integrity, restore
from slurm_energy.accounting.backups.backup_file import (
    BackupHeader,
    BackupReader,
    BackupWriter,
    DamagedBackupError,
)
from slurm_energy.accounting.schema import migrations, tables
from slurm_energy.accounting.writer_lock import writer_lock
from slurm_energy.errors import AlreadyRunningError, EnergyError, UnavailableError

NEWEST = VERSIONS[-1]


def no_progress(done, total):
    pass


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    path = tmp_path_factory.mktemp("prepared") / "full.db"
    load_schema(NEWEST, path)
    migrations.prepare(path)
    return path


@pytest.fixture
def full(tmp_path, prepared):
    """Return the path of a SQLite database that is filled with data in the newest schema."""
    return Path(shutil.copy(prepared, tmp_path))


@pytest.fixture(scope="module")
def whole(prepared):
    """A portable backup of the database `prepared`. Tests must not change the backup."""
    path = prepared.with_name("whole")
    write(prepared, path)
    return path


def write(location, path, **options):
    database = engine.Database(location, read_only=True)
    try:
        return backup.write_portable(database, path, no_progress, **options)
    finally:
        database.close()


def put_back(path, location, **options):
    database = engine.Database(location)
    try:
        return restore.restore(path, database, no_progress, **options)
    finally:
        database.close()


def lines(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_a_backup_restores_into_each_store_and_back(full, store_location, tmp_path):
    counts = write(full, tmp_path / "first")
    assert counts["records"] == 33
    assert counts["history"] == 18
    if not store_location.startswith("/"):
        assert put_back(tmp_path / "first", store_location) == counts
    else:
        put_back(tmp_path / "first", store_location)
    integrity.verify(store_location)
    assert write(store_location, tmp_path / "second") == counts
    assert lines(tmp_path / "second")[1:-1] == lines(tmp_path / "first")[1:-1]
    with engine.connect(store_location) as connection:  # row ids continue
        values = {"cluster": "c1", "job_id": 1, "submit": 1.0, "time": 2.0, "kind": "shape", "why": ""}
        connection.execute(tables.decisions.insert(), {**values, "details": "{}"})
        assert connection.execute(tables.decisions.select()).fetchall()[-1].id > 2


@pytest.mark.parametrize(
    "version",
    [VERSIONS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in VERSIONS[1:-1]), VERSIONS[-1]],
)
def test_backups_of_older_schemas_are_upgraded(version, tmp_path):
    load_schema(version, tmp_path / "old.db")
    content = rows_of(tmp_path / "old.db")
    write(tmp_path / "old.db", tmp_path / "portable")
    backup.copy_sqlite(tmp_path / "old.db", tmp_path / "copy.db", no_progress)
    for source in ("portable", "copy.db"):
        before = (tmp_path / source).read_bytes()
        put_back(tmp_path / source, tmp_path / f"{source}.restored")
        restored = rows_of(tmp_path / f"{source}.restored")
        assert [row["body"] for row in restored["records"]] == [row["body"] for row in content["records"]]
        assert (tmp_path / source).read_bytes() == before


@pytest.mark.slow
def test_a_copy_of_sqlite_restores_into_a_server(full, tmp_path, database_servers):
    backup.copy_sqlite(full, tmp_path / "copy.db", no_progress)
    location = database_servers.empty_store("postgresql")
    put_back(tmp_path / "copy.db", location)
    write(location, tmp_path / "server")
    write(full, tmp_path / "sqlite")
    assert lines(tmp_path / "server")[1:-1] == lines(tmp_path / "sqlite")[1:-1]


@pytest.mark.slow
def test_a_restoration_refuses_contents_and_a_running_controller(full, store_location, tmp_path):
    write(full, tmp_path / "backup")
    database = engine.Database(store_location)
    with writer_lock(database), pytest.raises(AlreadyRunningError):
        put_back(tmp_path / "backup", store_location)
    database.close()
    put_back(tmp_path / "backup", store_location)
    with pytest.raises(EnergyError, match=r"is not empty: .* 33 of them records"):
        put_back(tmp_path / "backup", store_location)
    put_back(tmp_path / "backup", store_location, replace=True)


@pytest.mark.slow
def test_an_incomplete_backup_changes_nothing(whole, store_location, tmp_path):
    put_back(whole, store_location)
    data = whole.read_bytes()
    for cut in (0.0, 0.3, 0.9, 0.999):
        (tmp_path / "part").write_bytes(data[: int(len(data) * cut)])
        with pytest.raises(EnergyError):
            put_back(tmp_path / "part", store_location, replace=True)
        write(store_location, tmp_path / "after")
        assert lines(tmp_path / "after")[1:-1] == lines(whole)[1:-1], cut
        (tmp_path / "after").unlink()


def test_changed_bytes_are_detected(whole, tmp_path):
    for change in (
        lambda text: text.replace('"alice"', '"mallo"', 1),
        lambda text: text.replace('"rows":33', '"rows":32'),
        lambda text: text + "[]\n",
        lambda text: "\n".join(text.split("\n")[:20] + text.split("\n")[21:]),
    ):
        text = "\n".join(lines(whole)) + "\n"
        (tmp_path / "changed").write_bytes(gzip.compress(change(text).encode()))
        with pytest.raises(DamagedBackupError):
            restore.read_backup(tmp_path / "changed", no_progress)
        with pytest.raises(DamagedBackupError):
            put_back(tmp_path / "changed", tmp_path / "new.db")
        assert not list(tmp_path.glob("*new.db"))


def test_a_backup_of_a_newer_release_is_refused(whole, tmp_path):
    header, *others = lines(whole)
    newer = json.dumps(json.loads(header) | {"schema": migrations.SCHEMA_VERSION + 1})
    (tmp_path / "newer").write_bytes(gzip.compress("\n".join([newer, *others, ""]).encode()))
    with pytest.raises(UnavailableError, match="newer than this release"):
        put_back(tmp_path / "newer", tmp_path / "new.db")


def test_a_failed_backup_keeps_the_earlier_one(full, tmp_path):
    write(full, tmp_path / "backup")
    earlier = (tmp_path / "backup").read_bytes()
    with pytest.raises(EnergyError, match="exists already"):
        write(full, tmp_path / "backup")
    with sqlite3.connect(full) as connection:
        connection.execute("DROP TABLE traces")
        connection.execute("CREATE VIEW traces AS SELECT * FROM missing")
    with pytest.raises(integrity.DamagedDatabaseError, match="table traces is missing"):
        write(full, tmp_path / "backup", replace=True)
    assert (tmp_path / "backup").read_bytes() == earlier
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_a_backup_holds_one_moment_while_another_process_writes(full, tmp_path):
    stop = threading.Event()

    def change():
        with sqlite3.connect(full, isolation_level=None, timeout=30) as connection:
            while not stop.is_set():
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("UPDATE nodes SET last_end = last_end + 1")
                connection.execute("COMMIT")

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for number in range(5):
            write(full, tmp_path / f"{number}.portable")
            backup.copy_sqlite(full, tmp_path / f"{number}.db", no_progress)
    finally:
        stop.set()
        writer.join()
    for number in range(5):
        for path in (tmp_path / f"{number}.portable", tmp_path / f"{number}.db"):
            put_back(path, tmp_path / "restored.db", replace=True)
            ends = {row["node"]: row["last_end"] for row in rows_of(tmp_path / "restored.db")["nodes"]}
            assert ends["n1"] - ends["n2"] == pytest.approx(10803.0)


def test_two_backups_to_one_file_at_once_leave_a_complete_one(tmp_path):
    header = BackupHeader(7, "1", 0.0, "sqlite", {"t": ["a"]})
    with (
        BackupWriter(tmp_path / "b", header, replace=True) as first,
        BackupWriter(tmp_path / "b", header, replace=True) as second,
    ):
        for writer in (first, second):
            writer.write_table("t", [[1]] * 1000)
        first.finish()
        assert restore.read_backup(tmp_path / "b", no_progress) == {"t": 1000}
        second.finish()
    assert restore.read_backup(tmp_path / "b", no_progress) == {"t": 1000}
    assert not list(tmp_path.glob(".*"))


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text()
)


@given(st.lists(st.tuples(VALUES, st.one_of(st.none(), st.binary())), max_size=20))
def test_every_value_is_read_as_it_was_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("values") / "backup"
    rows = [(_storable(value), data) for value, data in rows]
    with BackupWriter(path, BackupHeader(7, "1", 0.0, "sqlite", {"t": ["a", "b:base64"]})) as writer:
        writer.write_table("t", rows)
        writer.finish()
    with BackupReader(path) as reader:
        assert [tuple(row) for _, found in reader.tables() for row in found] == rows
        reader.verify()


def _storable(value):
    """Return text without surrogates, which no database stores."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


@given(st.binary(max_size=400))
def test_no_file_ends_in_an_unexpected_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("hostile") / "backup"
    for content in (data, gzip.compress(data)):
        path.write_bytes(content)
        with pytest.raises(EnergyError):
            put_back(path, path.with_name("new.db"))


@pytest.mark.parametrize("value", ["[]", "{}", '"\\ud800"', "9223372036854775808", "1" * 5000, '"x"'])
def test_impossible_values_are_explained(value, whole, tmp_path):
    content = [line.encode() for line in lines(whole)]
    at = content.index(b'{"table":"nodes"}') + 1
    columns = json.loads(content[0])["tables"]["nodes"]
    row = [json.dumps(one) for one in json.loads(content[at])]
    row[columns.index("last_received")] = value
    content[at] = f"[{','.join(row)}]".encode()
    rows = json.loads(content[-1])["rows"]
    digest = hashlib.sha256(b"".join(line + b"\n" for line in content[:-1])).hexdigest()
    content[-1] = json.dumps({"rows": rows, "sha256": digest}).encode()
    bad = tmp_path / "bad"
    bad.write_bytes(gzip.compress(b"".join(line + b"\n" for line in content)))
    with pytest.raises(DamagedBackupError):
        put_back(bad, tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    "header", [{"tables": {"nodes": None}}, {"tables": {"nodes": [1]}}, {"tables": []}, {"schema": True}]
)
def test_impossible_headers_are_explained(header, whole, tmp_path):
    first = json.loads(lines(whole)[0]) | header
    bad = tmp_path / "bad"
    bad.write_bytes(gzip.compress(f'{json.dumps(first)}\n{{"table":"nodes"}}\n["n"]\n'.encode()))
    with pytest.raises(DamagedBackupError, match="header"):
        restore.read_backup(bad, no_progress)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END",
        "CREATE VIEW v AS SELECT * FROM records",
        "UPDATE schema_version SET version = 'x'",
        "UPDATE schema_version SET version = -3",
    ],
)
def test_a_hostile_sqlite_file_is_refused(sql, full, tmp_path):
    with contextlib.closing(sqlite3.connect(full)) as connection:
        connection.execute(sql)
        connection.commit()
    with pytest.raises(EnergyError, match=r"unknown|damaged"):
        put_back(full, tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()
