"""Tests of the database of senergyctld.

The tests check the file, the selection of records, duplicates, facts about jobs, deletion by age, and the
use of indexes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from store_examples import NOW, Accounting, item, job, record

from slurm_energy.accounting import engine
from slurm_energy.accounting.backends import backend_of
from slurm_energy.accounting.backups import integrity
from slurm_energy.accounting.history.node_arrivals import read_node_arrivals
from slurm_energy.accounting.records import job_facts, record_queries, traces
from slurm_energy.accounting.records.record_selection import JobSelector, RecordSelection, Visibility
from slurm_energy.accounting.schema import migrations, tables
from slurm_energy.controller import main as controller_main
from slurm_energy.errors import ForbiddenError, UnavailableError, UsageError
from slurm_energy.reports.trace import encode_trace


@pytest.fixture
def accounting(store_location):
    return Accounting(store_location)


class TestFile:
    def test_is_private_and_made_once(self, tmp_path):
        path = tmp_path / "a.db"
        migrations.prepare(path)
        migrations.prepare(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with engine.connect(path) as connection:
            versions = connection.exec_driver_sql("SELECT version FROM schema_version").fetchall()
            assert versions == [(number + 1,) for number in range(migrations.SCHEMA_VERSION)]
            assert connection.exec_driver_sql("PRAGMA journal_mode").fetchone() == ("wal",)

    def test_missing_directory_says_how_to_make_it(self, tmp_path):
        for function in (migrations.prepare, migrations.check):
            with pytest.raises(UnavailableError, match=r"no/such does not exist: create it: install -d"):
                function(tmp_path / "no" / "such" / "a.db")

    def test_newer_schema_is_refused_and_untouched(self, tmp_path):
        path = tmp_path / "a.db"
        migrations.prepare(path)
        with engine.connect(path) as connection:
            connection.exec_driver_sql("INSERT INTO schema_version VALUES (99, 0)")
        for function in (migrations.prepare, migrations.check):
            with pytest.raises(UnavailableError, match="schema 99 is newer"):
                function(path)

    @pytest.mark.parametrize("content", [b"not a database at all, just text" * 100, None])
    def test_other_files_are_refused(self, tmp_path, content):
        path = tmp_path / "a.db"
        if content is None:
            connection = sqlite3.connect(path)
            connection.execute("CREATE TABLE other (x)")
            connection.close()
        else:
            path.write_bytes(content)
        before = path.read_bytes()
        for function in (migrations.prepare, migrations.check):
            with pytest.raises(UnavailableError):
                function(path)
        assert path.read_bytes() == before

    def test_check_creates_nothing(self, tmp_path):
        migrations.check(tmp_path / "a.db")
        assert list(tmp_path.iterdir()) == []

    def test_reading_connections_cannot_write(self, accounting):
        with (
            accounting.connect(read_only=True) as connection,
            pytest.raises(DBAPIError),
        ):
            connection.exec_driver_sql("DELETE FROM records")

    def test_an_interrupted_migration_leaves_nothing_behind(self, tmp_path, monkeypatch):
        path = tmp_path / "a.db"
        with monkeypatch.context() as patch:
            patch.setattr(migrations, "SQLITE_STEPS", (migrations.SQLITE_STEPS[0] + "; CREATE NONSENSE",))
            with pytest.raises(UnavailableError):
                migrations.prepare(path)
        migrations.prepare(path)
        assert Accounting(tmp_path).ids() == []


class TestSelection:
    def test_everything_in_order(self, accounting):
        accounting.deliver(item(job_id=3), item(job_id=1, node="n2"), item(job_id=1, node="n1"))
        found = accounting.find()
        assert [(r["job_id"], r["node"]) for r in found] == [(1, "n1"), (1, "n2"), (3, "n1")]

    def test_record_comes_back_whole(self, accounting):
        sent = record(job_id=7, tag="é", notes=('a "quoted" note',), requested={"ENERGY_CAP": "200"})
        accounting.deliver(item(sent))
        (found,) = accounting.find()
        assert found.pop("job") is None
        assert found == json.loads(json.dumps(sent))

    def test_steps_only_when_wanted(self, accounting):
        accounting.deliver(item(), item(step="batch"), item(step="0"))
        assert [r["step"] for r in accounting.find()] == [None]
        assert [r["step"] for r in accounting.find(steps="1")] == [None, "0", "batch"]

    def test_a_step_in_the_job_list_is_meant_for_that_job_only(self, accounting):
        for job_id in (12, 13):
            accounting.deliver(item(job_id=job_id), item(job_id=job_id, step="batch"))
        found = accounting.find(job="12.batch,13")
        assert [(r["job_id"], r["step"]) for r in found] == [(12, "batch"), (13, None)]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ({"job": "20"}, [20, 21, 22]),
            ({"job": "20_1"}, [21]),
            ({"job": "22"}, [22]),
            ({"job": "30"}, [30, 31]),
            ({"job": "30+1"}, [31]),
            ({"job": "30+1,20_2"}, [22, 31]),
            ({"job": "99"}, []),
            ({"account": "physics"}, [20, 21, 22]),
            ({"account": "physics,chem"}, [20, 21, 22, 30]),
            ({"partition": "gpu"}, [31]),
            ({"user": "bob"}, [30, 31]),
            ({"user": "1000"}, [20, 21, 22]),
            ({"user": "bob,1000"}, [20, 21, 22, 30, 31]),
            ({"user": "bob", "partition": "cpu"}, [30]),
        ],
    )
    def test_who_and_which(self, accounting, query, expected):
        accounting.deliver(
            *(item(job_id=j) for j in (20, 21, 22)), *(item(job_id=j, uid=1001) for j in (30, 31))
        )
        accounting.learn(
            job(20, "20_0"),
            job(21, "20_1"),
            job(22, "20_2"),
            job(30, "30+0", user="bob", account="chem"),
            job(31, "30+1", user="bob", account=None, partition="gpu"),
        )
        assert accounting.ids(**query) == expected

    @pytest.mark.parametrize(
        ("window", "expected"),
        [
            ({}, [1, 2, 3]),
            ({"start": "150"}, [2, 3]),
            ({"start": "200"}, [2, 3]),  # ends at 200: inside the window, as for sacct
            ({"start": "200.5"}, [3]),
            ({"end": "300"}, [1, 2]),
            ({"end": "300.5"}, [1, 2, 3]),
            ({"start": "110", "end": "140"}, [2]),
            ({"start": "120", "end": "121"}, [2]),
            ({"start": "500"}, []),
        ],
    )
    def test_window_takes_jobs_in_any_part_of_it(self, accounting, window, expected):
        accounting.deliver(
            item(job_id=1, start=0.0, end=100.0),
            item(job_id=2, start=100.0, end=200.0),
            item(job_id=3, start=300.0, end=400.0),
        )
        assert accounting.ids(**window) == expected

    def test_node_selects_whole_jobs(self, accounting):
        accounting.deliver(
            item(job_id=1, node="n1"), item(job_id=1, node="n2"), item(job_id=2, node="n3"), item(job_id=3)
        )
        assert [(r["job_id"], r["node"]) for r in accounting.find(node="n2,n3")] == [
            (1, "n1"),
            (1, "n2"),
            (2, "n3"),
        ]

    def test_long_lists(self, accounting):
        accounting.deliver(item(job_id=7), item(job_id=7, step="batch"), item(job_id=8))
        accounting.learn(job(7, "6_5000"), job(8, "6_2"))
        for form in ("{}", "6_{}", "{}+1,7", "{}.batch,8,7"):
            text = ",".join(form.format(number) for number in range(2, 1600))
            assert 7 in accounting.ids(job=text + ",6_5000")
        with pytest.raises(UsageError, match="200 different steps"):
            accounting.ids(job=",".join(f"7.{number}" for number in range(300)))

    @pytest.mark.parametrize(
        "query",
        [
            {"job": "12a"},
            {"job": "12_"},
            {"job": "1+2_3"},
            {"job": "9" * 30},
            {"job": "1;DROP TABLE records"},
            {"start": "yesterday"},
            {"end": "-1"},
            {"start": "1e400"},
            {"start": "nan"},
            {"steps": "yes"},
            {"node": "n[1-3]"},
            {"colour": "red"},
            {"job": ",".join(["1"] * 6000)},
        ],
    )
    def test_bad_queries_are_one_line(self, query):
        with pytest.raises(UsageError) as raised:
            RecordSelection.from_query(query)
        assert len(str(raised.value)) < 200 and "\n" not in str(raised.value)

    def test_huge_uids_and_odd_names_find_nothing(self, accounting):
        accounting.deliver(item())
        assert accounting.ids(user="9" * 40) == []
        assert accounting.ids(user="' OR 1=1 --") == []


class TestDuplicates:
    def test_requeued_job_shows_its_last_run(self, accounting):
        accounting.deliver(
            item(start=0.0, end=50.0),
            item(start=0.0, end=50.0, node="n2"),
            item(start=60.0, end=90.0, node="n2", restart_count=1),
        )
        assert [r["restart_count"] for r in accounting.find()] == [1]
        assert [r["restart_count"] for r in accounting.find(duplicates="1")] == [0, 0, 1]

    def test_ids_used_again(self, accounting):
        accounting.deliver(
            item(start=0.0, end=50.0, restart_count=1, uid=1), item(start=90_000.0, end=90_050.0, uid=2)
        )
        assert [r["uid"] for r in accounting.find()] == [2]
        assert len(accounting.find(duplicates="1")) == 2

    def test_ids_used_again_soon_are_told_apart_by_facts(self, accounting):
        accounting.deliver(item(start=0.0, end=50.0, uid=1), item(start=500.0, end=550.0, uid=2))
        accounting.learn(
            job(1, submit=0.0, start=0.0, end=50.0), job(1, submit=490.0, start=500.0, end=550.0)
        )
        assert [r["uid"] for r in accounting.find()] == [2]

    def test_nodes_of_one_short_run_do_not_hide_each_other(self, accounting):
        accounting.deliver(item(start=5.0, end=5.0), item(start=5.1, end=5.1, node="n2"))
        accounting.deliver(item(start=5.0, end=5.0, step="batch"))
        assert len(accounting.find(steps="1")) == 3
        accounting.learn(job(1, submit=4.0, start=5.0, end=5.0))
        assert len(accounting.find(steps="1")) == 3


class TestOwnJobsOnly:
    def test_others_are_left_out(self, accounting):
        accounting.deliver(item(job_id=1, uid=1000), item(job_id=2, uid=1001))
        assert accounting.ids(RecordSelection(visible=Visibility(1001))) == [2]

    @pytest.mark.parametrize("wanted", ["1", "1.batch", "2,1"])
    def test_asking_for_another_users_job_is_refused_by_name(self, accounting, wanted):
        accounting.deliver(item(job_id=1, uid=1000), item(job_id=2, uid=1001))
        jobs = tuple(JobSelector.parse(text) for text in wanted.split(","))
        with pytest.raises(ForbiddenError, match=r"job 1(\.batch)?: it belongs to another user"):
            accounting.ids(RecordSelection(jobs=jobs, visible=Visibility(1001)))

    def test_a_task_of_another_user(self, accounting):
        accounting.deliver(item(job_id=5, uid=1000))
        accounting.learn(job(5, "4_1"))
        with pytest.raises(ForbiddenError, match="job 4_1"):
            accounting.ids(RecordSelection(jobs=(JobSelector.parse("4_1"),), visible=Visibility(1001)))

    def test_an_own_job_whose_id_another_user_had_before(self, accounting):
        accounting.deliver(item(start=0.0, end=5.0, uid=1000), item(start=90_000.0, end=90_005.0, uid=1001))
        jobs = (JobSelector.parse("1"),)
        assert accounting.ids(RecordSelection(jobs=jobs, visible=Visibility(1001), duplicates=True)) == [1]

    def test_jobs_that_do_not_exist_are_just_not_there(self, accounting):
        assert (
            accounting.ids(RecordSelection(jobs=(JobSelector.parse("77"),), visible=Visibility(1001))) == []
        )


class TestFacts:
    def test_come_with_the_record_and_fill_the_columns(self, accounting):
        accounting.deliver(item())
        outcome = accounting.learn(job(1, name='a "b"\n', end=None, state="RUNNING", nodes=None))
        assert outcome.linked == 1
        (found,) = accounting.find(account="physics")
        assert "account" not in found  # the body of the record does not change
        assert found["job"] == {
            "display_id": "1",
            "name": 'a "b"\n',
            "account": "physics",
            "partition": "cpu",
            "user": "alice",
            "state": "RUNNING",
            "submit": 900.0,
            "start": 1000.0,
            "end": None,
            "elapsed_s": 100.0,
            "nodes": None,
            "array_job_id": None,
            "array_task_id": None,
            "het_job_id": None,
            "het_offset": None,
            "requested": None,
            "exit_code": None,
            "step_exit_code": None,
        }

    def test_open_until_the_state_is_final(self, accounting):
        accounting.deliver(item())
        with accounting.connect() as connection:
            assert job_facts.pending_lookups(connection, NOW - 5) == [job_facts.JobLookup("c1", 1, True)]
            assert job_facts.pending_lookups(connection, NOW + 5) == []
        accounting.learn(job(1, state="RUNNING", end=None))
        with accounting.connect() as connection:
            assert job_facts.pending_lookups(connection, NOW - 5) == [job_facts.JobLookup("c1", 1, False)]
            assert job_facts.pending_lookups(connection, NOW + 5) == []
        accounting.learn(job(1, state="COMPLETED"))
        with accounting.connect() as connection:
            assert job_facts.pending_lookups(connection, 0) == []
        assert accounting.find()[0]["job"]["state"] == "COMPLETED"
        assert accounting.rows("SELECT count(*) FROM jobs") == [(1,)]

    def test_what_slurm_says_right_after_the_end_is_asked_for_again(self, accounting):
        accounting.deliver(item())
        accounting.learn(job(1, state="COMPLETED", name="allocation", end=1100.0), now=1105.0)
        with accounting.connect() as connection:
            assert job_facts.pending_lookups(connection, 0) == [job_facts.JobLookup("c1", 1, False)]
        accounting.learn(job(1, display_id="7_1", state="COMPLETED", name="train", end=1100.0), now=1111.0)
        with accounting.connect() as connection:
            assert job_facts.pending_lookups(connection, 0) == []
        assert accounting.find()[0]["job"]["display_id"] == "7_1"

    def test_each_run_gets_its_own(self, accounting):
        accounting.deliver(item(start=0.0, end=50.0), item(start=60.0, end=90.0, restart_count=1))
        accounting.learn(
            job(1, submit=0.0, start=0.0, end=50.0, state="REQUEUED"),
            job(1, submit=51.0, start=60.0, end=90.0, state="COMPLETED"),
        )
        states = [r["job"]["state"] for r in accounting.find(duplicates="1")]
        assert states == ["REQUEUED", "COMPLETED"]

    def test_a_run_whose_start_slurm_lost_is_taken_once_that_is_final(self, accounting):
        accounting.deliver(item(start=50.0, end=60.0))
        lost = job(1, submit=49.0, start=None, end=60.0, state="REQUEUED")
        assert accounting.learn(lost, now=65.0).linked == 0
        assert accounting.learn(lost, now=71.0).linked == 1
        assert accounting.find()[0]["job"]["state"] == "REQUEUED"

    def test_another_clusters_job_of_the_same_id_is_not_taken(self, accounting):
        accounting.deliver(item())
        outcome = accounting.learn(job(1, cluster="c2"))
        assert outcome == (0, frozenset({"c2"}))
        assert accounting.find()[0]["job"] is None

    def test_a_source_without_cluster_names_is_taken(self, accounting):
        accounting.deliver(item())
        assert accounting.learn(job(1, cluster=None)).linked == 1


def test_retention_drops_traces_and_keeps_records(accounting):
    old = encode_trace(100.0, 1.0, {"cpu": [1.0, 2.0]})
    new = encode_trace(5000.0, 1.0, {"cpu": [1.0, 2.0]})
    accounting.deliver(item(job_id=1, trace=old), item(job_id=2, trace=new))
    with accounting.connect() as connection:
        assert traces.drop_old_attachments(connection, tables.traces, 102.0) == 0
        assert traces.drop_old_attachments(connection, tables.traces, 103.0) == 1
        assert traces.drop_old_attachments(connection, tables.traces, 103.0) == 0
    assert [r["trace"] for r in accounting.find(with_traces=True)] == [None, new]


def test_figures(accounting):
    accounting.deliver(item(job_id=1, end=1200.0), item(job_id=2, node="n2"), now=NOW)
    accounting.deliver(item(job_id=3, end=1150.0), now=NOW + 9)
    accounting.learn(job(1))
    with accounting.connect(read_only=True) as connection:
        figures = record_queries.database_figures(connection)
    assert figures.pop("database_bytes") > 0
    assert figures == {
        "records": 3,
        "records_without_job": 2,
        "traces": 0,
        "nodes": [
            {"cluster": "c1", "node": "n1", "last_record_end": 1200.0, "last_received": NOW + 9},
            {"cluster": "c1", "node": "n2", "last_record_end": 1100.0, "last_received": NOW},
        ],
    }


class TestIntegrity:
    @pytest.fixture
    def path(self, tmp_path):
        made = Accounting(tmp_path)
        trace = encode_trace(0.0, 1.0, {"cpu": [float(n % 97) for n in range(500)]})
        made.deliver(*(item(job_id=n, trace=trace) for n in range(200)))
        made.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        return made.path

    def test_a_whole_database(self, path):
        integrity.verify(path)

    def test_damaged_pages(self, path):
        """The check of a SQLite database reports a damaged page, unless the page is unused."""
        whole = path.read_bytes()
        pages = len(whole) // 4096
        assert pages > 40
        noticed = 0
        for page in range(1, pages, 3):
            path.write_bytes(whole[: page * 4096] + bytes([0x5A]) * 4096 + whole[(page + 1) * 4096 :])
            try:
                integrity.verify(path)
            except integrity.DamagedDatabaseError as error:
                noticed += 1
                assert (error.exit_code, str(error).count("\n")) == (1, 0)
                assert (
                    str(path) in str(error)
                    and "damaged: " in str(error)
                    and "senergy db recover" in str(error)
                )
        # Inner pages of a long value contain only the value.
        assert noticed > pages / 3 / 2

    def test_references_and_columns(self, path):
        with engine.connect(path) as connection:
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
            connection.exec_driver_sql("DELETE FROM records WHERE job_id = 7")
        with pytest.raises(integrity.DamagedDatabaseError, match="row 8 of traces"):
            integrity.verify(path)
        with engine.connect(path) as connection:
            connection.exec_driver_sql("DROP TABLE nodes")
            connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN name")
        with pytest.raises(integrity.DamagedDatabaseError, match=r"jobs\.name .*table nodes"):
            integrity.verify(path)

    def test_an_older_schema_is_whole(self, tmp_path, monkeypatch):
        monkeypatch.setattr(migrations, "SCHEMA_VERSION", 1)
        migrations.prepare(tmp_path / "old.db")
        integrity.verify(tmp_path / "old.db")

    def test_the_command(self, path, tmp_path, capsys):
        config = tmp_path / "energy.toml"
        config.write_text(f'[controller]\ndatabase = "{path}"\npolicy_file = "{tmp_path}/policies"\n')
        config.chmod(0o600)
        assert controller_main.main(["--config", str(config), "--check"]) == 0
        data = bytearray(path.read_bytes())
        data[4096 * 3 : 4096 * 9] = os.urandom(4096 * 6)
        path.write_bytes(bytes(data))
        capsys.readouterr()
        assert controller_main.main(["--config", str(config), "--check"]) == 1
        lines = capsys.readouterr().err.splitlines()
        lines = [line for line in lines if "warning:" not in line]  # of a database that is not root's
        assert len(lines) == 1 and "damaged" in lines[0]


def plans(path, call):
    """Return SQLite's plan of each query that `call(connection)` executes."""
    found = []
    with engine.connect(path, read_only=True) as connection:

        @event.listens_for(connection, "before_cursor_execute")
        def explain(connection, cursor, statement, parameters, *_):
            driver = connection.connection.dbapi_connection
            rows = driver.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            found.append("; ".join(row[3] for row in rows))

        call(connection)
    return found


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ({"user": "1000"}, "records_uid"),
        ({"account": "a"}, "records_account"),
        ({"job": "12"}, "records_job_id"),
        ({"job": "12_3"}, "jobs_array"),
        ({"job": "12+1"}, "jobs_het"),
        ({"node": "n1"}, "records_job_id"),
        ({"start": "5"}, "records_end"),
    ],
)
def test_selections_use_indexes(tmp_path, query, index):
    path, selection = Accounting(tmp_path).path, RecordSelection.from_query(query)
    (plan,) = plans(path, lambda connection: record_queries.find_records(connection, selection))
    assert f"USING INDEX {index} " in plan
    assert "SCAN r" not in plan and "SCAN j" not in plan


def test_pending_lookups_use_indexes(tmp_path):
    path = Accounting(tmp_path).path
    new, _, unfinished = plans(path, lambda connection: job_facts.pending_lookups(connection, 5.0))
    assert "USING INDEX records_without_job" in new and "USING INDEX jobs_unfinished" in unfinished


def test_node_arrivals_use_an_index(tmp_path):
    path = Accounting(tmp_path).path
    (plan,) = plans(path, lambda connection: read_node_arrivals(connection, "c1", 5.0))
    assert "USING INDEX records_end " in plan and "TEMP B-TREE" not in plan


def test_node_arrivals_are_complete_from_the_first_one_on(accounting):
    times = [(100.0, 900.0), (300.0, 400.0), (350.0, 380.0), (500.0, 600.0), (700.0, 1000.0)]
    for number, (start, end) in enumerate(times):
        node = f"n{number}"
        accounting.deliver(item(job_id=number, start=start, end=end, node=node))
        accounting.deliver(item(job_id=number, start=start, end=end, node=node, step="0"))
    accounting.deliver(item(job_id=9, start=800.0, end=850.0, cluster="other"))
    arrivals = [(f"n{number}", *one) for number, one in enumerate(times)]
    with accounting.connect(read_only=True) as connection:
        assert read_node_arrivals(connection, "c1", 0.0) == arrivals
        assert read_node_arrivals(connection, "c1", 300.0) == arrivals[1:]
        # The four that ended last; another may have started at up to 400 s and ended before them.
        assert read_node_arrivals(connection, "c1", 0.0, 4) == arrivals[3:]


def test_truncated_node_arrivals_begin_after_the_earliest_end(accounting):
    for number, end in enumerate((100.0, 100.0, 200.0)):
        accounting.deliver(item(job_id=number, start=100.0, end=end, node=f"n{number}"))
    accounting.deliver(item(job_id=3, start=150.0, end=300.0, node="n3"))
    with accounting.connect(read_only=True) as connection:
        assert read_node_arrivals(connection, "c1", 0.0, 3) == [("n3", 150.0, 300.0)]


@pytest.mark.parametrize(("estimate", "count"), [(None, 1), (900_000, 1), (5_000_000, 5_000_000)])
def test_large_tables_are_not_counted(accounting, monkeypatch, estimate, count):
    accounting.deliver(item(job_id=1))
    with accounting.connect(read_only=True) as connection:
        monkeypatch.setattr(type(backend_of(connection)), "estimated_rows", lambda *_: estimate)
        assert record_queries.database_figures(connection)["records"] == count
