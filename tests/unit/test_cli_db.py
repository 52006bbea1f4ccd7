"""Tests of the command `senergy db`, run as an administrator runs it.

The actions are check, backup, restore, upgrade, prune and export.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import func, select
from store_examples import Accounting, item, record
from stored_schemas import VERSIONS, load_schema, rows_of

from slurm_energy.accounting import engine
from slurm_energy.accounting.backups import restore
from slurm_energy.accounting.schema import migrations, tables, usage_tables
from slurm_energy.accounting.usage import usage_queries
from slurm_energy.accounting.usage.usage_rollup import LAST_PERIOD
from slurm_energy.accounting.writer_lock import writer_lock
from slurm_energy.cli import db, main

NEWEST = VERSIONS[-1]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    path = tmp_path_factory.mktemp("prepared") / "senergy.db"
    load_schema(NEWEST, path)
    migrations.prepare(path)
    return path


@pytest.fixture
def path(tmp_path, monkeypatch, prepared):
    """Configure a SQLite file that already contains data, and return the path of the file."""
    path = Path(shutil.copy(prepared, tmp_path))
    config = tmp_path / "energy.toml"
    config.write_text(f'[cluster]\nname = "c1"\n[controller]\ndatabase = "{path}"\n')
    monkeypatch.setenv("SENERGY_CONFIG", str(config))
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def filled(path, store_location, tmp_path):
    """Location of a database with the content of the SQLite file `path`.

    A test with this fixture runs once for each kind of database.
    """
    if store_location.startswith("/"):
        return str(path)
    database = engine.Database(store_location)
    restore.restore(path, database, lambda done, total: None)
    database.close()
    return store_location


def run(capsys, *arguments):
    code = main.main(["db", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def location(text):
    return ["--database", text]


def test_check_counts_rows_of_each_store(filled, capsys):
    code, out, _ = run(capsys, "check", "--content", "--json", *location(filled))
    assert code == 0
    figures = json.loads(out)
    assert figures["rows"]["records"] == figures["records_checked"] == 33
    assert figures["rows"]["budget_samples"] == 40
    assert figures["schema"] == migrations.SCHEMA_VERSION
    assert figures["size_bytes"] > 0
    assert run(capsys, "check", *location(filled))[1].splitlines()[-1] == "ok"


def test_check_finds_a_record_that_differs_from_its_columns(filled, capsys):
    with engine.connect(filled) as connection:
        connection.execute(tables.records.update().where(tables.records.c.job_id == 103).values(uid=77))
    assert run(capsys, "check", *location(filled))[0] == 0
    code, _, err = run(capsys, "check", "--content", *location(filled))
    assert code == 1
    assert "uid differ from its text" in err


def test_check_of_a_missing_database_creates_nothing(path, capsys):
    code, _, err = run(capsys, "check", "--database", path.with_name("other.db"))
    assert (code, path.with_name("other.db").exists()) == (4, False)
    assert "no such file" in err


def test_check_of_an_emptied_file_fails(path, capsys):
    path.with_name("empty.db").touch()
    code, _, err = run(capsys, "check", "--database", path.with_name("empty.db"))
    assert code == 4
    assert "has no tables" in err


def test_no_message_shows_a_password(path, capsys):
    code, _, err = run(capsys, "check", "--database", "postgresql://u:secret@127.0.0.1:1/x")
    assert code == 4
    code, _, other = run(capsys, "check", "--database", "oracle://u:secret@h/x")
    assert code == 2
    assert "secret" not in err + other


@pytest.mark.slow
def test_a_backup_moves_a_site_to_a_server(path, store_location, tmp_path, capsys):
    assert run(capsys, "backup", "b.gz")[0] == 0
    assert run(capsys, "backup", "b.gz")[0] == 1
    assert run(capsys, "check", "--backup", "b.gz")[0] == 0
    if store_location.startswith("/"):
        store_location = str(tmp_path / "moved.db")
    code, out, _ = run(capsys, "restore", "b.gz", "--json", *location(store_location))
    assert (code, json.loads(out)["rows"]["records"]) == (0, 33)
    code, _, err = run(capsys, "restore", "b.gz", *location(store_location))
    assert code == 1
    assert "--force" in err
    assert run(capsys, "restore", "--force", "b.gz", *location(store_location))[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["backup", "--force", "senergy.db"],
        ["backup", "--force", "--copy", "./senergy.db"],
        ["backup", "--force", "link.db"],
        ["restore", "--force", "senergy.db"],
        ["upgrade", "--backup", "senergy.db-wal"],
        ["export", "jobs", "--force", "-o", "senergy.db"],
    ],
)
def test_the_database_is_never_its_own_backup(arguments, path, capsys):
    path.with_name("link.db").symlink_to(path)
    before = rows_of(path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "is the database itself" in err
    assert rows_of(path) == before


@pytest.mark.other_user
def test_other_users_get_one_line(monkeypatch):
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory) / "senergy.db"
        load_schema(NEWEST, path)
        path.chmod(0o600)
        command = [sys.executable, "-m", "slurm_energy.cli.main", "db", "check", "--database", str(path)]
        as_nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **as_nobody)
    assert (done.returncode, len(done.stderr.splitlines())) == (5, 1), done.stderr
    assert "permission denied" in done.stderr


def test_the_size_of_a_small_backup_is_not_zero(path, capsys):
    code, out, _ = run(capsys, "backup", "small.gz")
    assert code == 0 and re.search(r" [1-9][\d.]* k?B$", out.strip()), out


def test_restore_and_upgrade_refuse_while_senergyctld_runs(path, capsys):
    run(capsys, "backup", "b.gz")
    database = engine.Database(path)
    with writer_lock(database):
        for refused in (("restore", "--force", "b.gz"), ("upgrade",)):
            code, _, err = run(capsys, *refused)
            why = "senergyctld, or another command, is running: systemctl stop senergyctld"
            assert (code, err) == (7, f"senergy: error: database {database.name}: {why}\n")
        assert run(capsys, "backup", "c.gz")[0] == 0
        assert run(capsys, "check")[0] == 0
        assert run(capsys, "prune", "traces", "--before", "now")[0] == 0
    database.close()


def test_a_restored_file_belongs_to_the_owner_of_the_directory(path, tmp_path, capsys):
    if os.geteuid() != 0:
        pytest.skip("needs root: only root changes owners")
    run(capsys, "backup", "b.gz")
    tmp_path.chmod(0o755)
    os.chown(tmp_path, 65534, 65534)
    assert run(capsys, "restore", "--force", "b.gz")[0] == 0
    for name in ("senergy.db", "senergy.db.lock"):
        assert (tmp_path / name).stat().st_uid == 65534
    assert (tmp_path / "senergy.db").stat().st_mode & 0o777 == 0o600


def test_upgrade_saves_the_old_schema_first(tmp_path, path, capsys):
    old = tmp_path / "old.db"
    load_schema(1, old)
    _code, out, _ = run(capsys, "upgrade", "--dry-run", "--database", old)
    assert "would be upgraded from schema 1" in out
    assert run(capsys, "upgrade", "--backup", "before.gz", "--database", old)[0] == 0
    assert run(capsys, "check", "--content", "--database", old)[0] == 0
    assert "already" in run(capsys, "upgrade", "--database", old)[1]
    assert run(capsys, "restore", "before.gz", "--database", tmp_path / "again.db")[0] == 0
    again, upgraded = rows_of(tmp_path / "again.db"), rows_of(old)
    assert again["records"] == upgraded["records"]


def test_prune_deletes_what_it_counts(filled, capsys):
    options = [*("--before", "1970-01-02"), *location(filled)]
    code, out, _err = run(capsys, "prune", *db.PRUNABLE, "--dry-run", "--json", *options)
    counts = json.loads(out)["rows"]
    assert code == 0
    assert counts["traces"] == 4
    assert counts["records"] == 33
    assert run(capsys, "prune", "traces", "--cluster", "other", *options)[0] == 0
    before = json.loads(run(capsys, "check", "--json", *location(filled))[1])["rows"]
    assert before["traces"] == 4
    code, out, _ = run(capsys, "prune", *db.PRUNABLE, "--json", *options)
    assert json.loads(out)["rows"] == counts
    after = json.loads(run(capsys, "check", "--json", *location(filled))[1])["rows"]
    assert {name: before[name] - after[name] for name in counts} == counts
    assert after["jobs"] == before["jobs"]


def test_prune_keeps_the_sums_of_reports(filled, capsys):
    def sums():
        with engine.connect(filled, read_only=True) as connection:
            usage = usage_queries.read_usage(connection, usage_queries.UsageQuery((0, 172800)))
            return {usage.groups[group]: values for group, values in usage.intervals[0].sums.items()}

    before = sums()
    assert len(before) > 3
    assert run(capsys, "prune", "records", "periods", "--before", "1970-01-03", *location(filled))[0] == 0
    with engine.connect(filled, read_only=True) as connection:
        assert connection.execute(tables.periods.select()).fetchall() == []
        assert len(connection.execute(tables.node_periods.select()).fetchall()) == 1  # the last counted one
    assert sums() == before


def test_periods_that_no_report_has_counted_are_not_deleted(path, capsys):
    with engine.connect(path) as connection:
        connection.execute(tables.periods.update().values(usage_group=None))
        connection.execute(usage_tables.usage_state.delete())
    code, out, _ = run(capsys, "prune", "periods", "--before", "1970-01-03", "--json")
    assert (code, json.loads(out)["rows"]) == (0, {"node_periods": 0, "periods": 0})


def test_prune_keeps_what_nodes_may_deliver_again(path, capsys):
    code, _, err = run(capsys, "prune", "records", "--before", "now-1days")
    assert code == 2
    assert "7 days" in err
    assert run(capsys, "prune", "traces", "--before", "2999-01-01")[0] == 2


def test_exports_of_all_stores_are_equal(path, filled, capsys):
    for table in db.EXPORTABLE:
        for form in ("csv", "jsonl"):
            expected = run(capsys, "export", table, "--format", form)
            assert run(capsys, "export", table, "--format", form, *location(filled)) == expected
            assert expected[0] == 0


def test_export_in_all_formats_has_the_same_values(path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("r.csv", "r.jsonl", "r.parquet"):
        code, out, _ = run(capsys, "export", "records", "-o", name, "--json")
        assert (code, json.loads(out)["rows"]) == (0, 33)
    lines = [json.loads(line) for line in path.with_name("r.jsonl").read_text().splitlines()]
    assert parquet.read_table(path.with_name("r.parquet")).to_pylist() == lines
    with path.with_name("r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["energy_joules"] for row in rows] == [str(line["energy_joules"] or "") for line in lines]
    by_id = {line["record_id"]: line for line in lines}
    gpu_unknown = by_id[f"{7:032x}"]
    assert gpu_unknown["gpu_joules"] is None
    assert gpu_unknown["dram_joules"] == 250.25 * 7


def test_no_cell_of_a_csv_file_is_a_formula(path, capsys):
    _, out, _ = run(capsys, "export", "jobs")
    names = [row["name"] for row in csv.DictReader(io.StringIO(out))]
    assert any(name.startswith("'=cmd|") for name in names)
    assert not any(name.startswith(("=", "+", "-", "@")) for name in names)


@pytest.mark.parametrize(("encoding", "arrow"), [("utf-8", "\u2192"), ("ascii", "?")], ids=["utf-8", "ascii"])
def test_no_name_in_a_printed_csv_file_controls_the_terminal(path, monkeypatch, encoding, arrow):
    with engine.connect(path) as connection:
        connection.execute(tables.jobs.update().values(name="x\x1b]0;title\x07\x1b[2J\u202e\u2192\nrow"))
    printed = io.TextIOWrapper(io.BytesIO(), encoding, newline="")
    monkeypatch.setattr(sys, "stdout", printed)
    assert main.main(["db", "export", "jobs"]) == 0
    text = printed.buffer.getvalue().decode(encoding)
    assert [line for line in text.split("\n") if not line.isprintable()] == []
    names = {row["name"] for row in csv.DictReader(io.StringIO(text))}
    assert names == {rf"x\x1b]0;title\x07\x1b[2J\u202e{arrow}\nrow"}


def test_export_selects_by_time_and_cluster(path, capsys):
    def count(*options):
        return len(run(capsys, "export", "records", *options)[1].splitlines()) - 1

    assert count("--until", "uts0036000") + count("--since", "uts0036000") == 33
    assert count("--cluster", "other") == 0
    assert run(capsys, "export", "records", "--since", "now", "--until", "now-1days")[0] == 2
    assert run(capsys, "export", "records", "--format", "parquet")[0] == 2
    (path.with_name("x.csv")).write_text("")
    assert run(capsys, "export", "records", "-o", "x.csv")[0] == 1


@pytest.fixture
def damaged(path, tmp_path):
    """Return a function that damages the database and returns the original number of records.

    The function overwrites every sixth page of the table of records.
    """
    accounting = Accounting(tmp_path)
    accounting.deliver(*(item(record(job_id=500 + n, record_id=f"d{n:031x}")) for n in range(400)))

    def overwrite():
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            sql = "SELECT pageno FROM dbstat WHERE name = 'records' AND pagetype = 'leaf' ORDER BY pageno"
            try:
                pages = [number for (number,) in connection.execute(sql)][::6]
            except sqlite3.OperationalError:
                pytest.skip("this SQLite has no table dbstat")
        with path.open("r+b") as file:
            for page in pages:
                file.seek((page - 1) * 4096 + 8)
                file.write(b"\xa5" * 3000)
        return 433

    return overwrite


@pytest.mark.slow
def test_damaged_pages_are_found_and_recovered_by_the_documented_steps(damaged, path, capsys):
    records = damaged()
    contents = path.read_bytes()
    code, _, err = run(capsys, "check")
    assert code == 1
    assert "damaged" in err and "senergy db recover" in err
    for options in (["--copy", "copy.db"], ["portable.gz"]):  # no backup of damaged contents
        code, _, err = run(capsys, "backup", *options)
        assert (code, path.with_name(options[-1]).exists()) in ((1, False), (4, False))
    code, out, _ = run(capsys, "recover", path, "recovered.db", "--json")
    found = json.loads(out)["tables"]["records"]
    assert code == 0
    assert path.read_bytes() == contents
    assert 0.6 * records < found["rows"] < records
    assert records - 60 < found["rows"] + found["missing"] <= records  # the last rows may be lost, too
    assert run(capsys, "check", "--content", "--database", path.with_name("recovered.db"))[0] == 0
    assert run(capsys, "restore", "--force", "recovered.db")[0] == 0
    assert run(capsys, "check", "--content")[0] == 0
    assert len(Accounting(path.parent).find()) > 0.6 * records / 2
    assert run(capsys, "recover", path, "recovered.db")[0] == 1


@pytest.mark.slow
def test_flipped_bits_in_texts_are_found_by_the_check_of_contents(path, capsys):
    Accounting(path.parent)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    assert data.count(b'"policy":"edp"') > 10
    path.write_bytes(data.replace(b'"policy":"edp"', b'"policy":"ecp"'))
    assert run(capsys, "check")[0] == 0
    assert run(capsys, "check", "--content")[0] == 1
    assert run(capsys, "recover", path, "recovered.db")[0] == 0
    assert rows_of(path.with_name("recovered.db"))["records"]
    assert run(capsys, "check", "--content", "--database", path.with_name("recovered.db"))[0] == 0


def test_recovery_corrects_the_last_counted_period(path, capsys):
    newest = select(func.max(tables.node_periods.c.id))
    last = select(usage_tables.usage_state.c.value).where(usage_tables.usage_state.c.name == LAST_PERIOD)
    with engine.connect(path) as connection:
        counted = connection.execute(last).scalar_one()
        assert connection.execute(newest).scalar_one() == counted > 2
        connection.execute(tables.node_periods.delete().where(tables.node_periods.c.id > counted - 2))
    assert run(capsys, "recover", path, "recovered.db")[0] == 0
    with engine.connect(path.with_name("recovered.db"), read_only=True) as connection:
        assert connection.execute(last).scalar_one() == connection.execute(newest).scalar_one() == counted - 2


def test_a_file_without_a_readable_schema_needs_a_backup(path, tmp_path, capsys):
    tmp_path.joinpath("torn.db").write_bytes(path.read_bytes()[:100] + bytes(5000))
    tmp_path.joinpath("other.db").write_bytes(b"hello" * 1000)
    for name in ("torn.db", "other.db", "missing.db"):
        code, _, err = run(capsys, "recover", name, "new.db")
        assert (code, tmp_path.joinpath("new.db").exists()) == (4, False), err


def test_help_does_not_import_sqlalchemy():
    code = "import sys, atexit; atexit.register(lambda: print('IMPORTED', 'sqlalchemy' in sys.modules))\n"
    code += "from slurm_energy.cli import main; main.main(['db', 'prune', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "IMPORTED False" in done.stdout
    assert "CATEGORY" in done.stdout
