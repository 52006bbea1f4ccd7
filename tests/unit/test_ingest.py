"""Deliveries: each record once, nothing lost that was acknowledged, bad items named and left out."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_examples import Accounting, item, record

from slurm_energy.accounting import ingest, traces
from slurm_energy.errors import UsageError
from slurm_energy.reports.trace import encode_trace

KILLS = 30


@pytest.fixture
def accounting(tmp_path):
    return Accounting(tmp_path)


class TestOnce:
    def test_delivered_again_is_accepted_without_effect(self, accounting):
        entries = [item(job_id=n, trace=encode_trace(0.0, 1.0, {"cpu": [float(n)]})) for n in range(3)]
        first = accounting.deliver(*entries)
        assert accounting.deliver(*entries) == first == [e["record"]["record_id"] for e in entries]
        assert accounting.rows("SELECT count(*), (SELECT count(*) FROM traces) FROM records") == [(3, 3)]

    def test_twice_in_one_delivery(self, accounting):
        entry = item()
        assert len(accounting.deliver(entry, entry)) == 2
        assert len(accounting.find()) == 1

    def test_the_first_of_one_id_wins(self, accounting):
        accounting.deliver(item(record_id="a", policy="edp"))
        accounting.deliver(item(record_id="a", policy="cap", start=5.0))
        assert [r["policy"] for r in accounting.find()] == ["edp"]

    def test_a_spool_made_anew_has_new_ids_but_the_same_records(self, accounting):
        again = [item(record_id="old"), item(record_id="new", trace=encode_trace(0.0, 1.0, {"cpu": [1.0]}))]
        assert accounting.deliver(*again) == ["old", "new"]
        assert [r["record_id"] for r in accounting.find()] == ["old"]

    def test_what_makes_a_record_another_one(self, accounting):
        entries = [
            item(),
            item(node="n2"),
            item(job_id=2),
            item(restart_count=1),
            item(step="batch"),
            item(start=999.0),
            item(cluster="c2"),
        ]
        accounting.deliver(*entries)
        assert len(accounting.find(steps="1", duplicates="1")) == len(entries)


class TestBadItems:
    @pytest.mark.parametrize(
        "bad",
        [
            None,
            [],
            {},
            {"record": None},
            {"record": {"schema": 1}},
            {"record": record() | {"schema": 2}},
            {"record": record() | {"colour": "red"}},
            {"record": record() | {"end": 1.0}},
            {"record": record() | {"start": float("inf")}},
            {"record": record() | {"job_id": 2**63}},
            {"record": record() | {"uid": -1}},
            {"record": record() | {"step": ""}},
            {"record": record() | {"record_id": ""}},
            {"record": record() | {"node": "\ud800"}},
            {"record": record() | {"tag": "x" * 2000}},
            {"record": record() | {"start": 10**400}},
            {"record": record() | {"components": [{"name": "warp", "energy_joules": 1}]}},
            {
                "record": record()
                | {
                    "components": [
                        {"name": name, "energy_joules": 1.7e308, "source": "x", "quality": "measured"}
                        for name in ("cpu", "dram")
                    ]
                }
            },
        ],
    )
    def test_are_named_and_the_others_kept(self, accounting, bad):
        items, rejections = ingest.read_items([item(job_id=1), bad, item(job_id=2)])
        assert [i.record.job_id for i in items] == [1, 2]
        ((index, error, kept),) = [(r.index, r.error, r.kept) for r in rejections]
        assert (index, kept) == (1, False)
        assert error and "\n" not in error and len(error) < 300

    def test_deep_nesting_is_named(self):
        for depth in range(800, 1000, 7):  # up to what Python's JSON reader takes
            try:
                asked = json.loads('{"a":' * depth + "1" + "}" * depth)
            except RecursionError:
                break
            _, rejections = ingest.read_items([item(record() | {"asked": asked})])
            assert len(rejections) == 1

    @pytest.mark.parametrize("data", [None, {}, "items", 3, [{}] * (ingest.MAX_ITEMS + 1)])
    def test_no_list_of_items(self, data):
        with pytest.raises(UsageError):
            ingest.read_items(data)

    @pytest.mark.parametrize("trace", [{"start": 1}, {"start": 10**400, "interval_s": 1, "columns": {}}])
    def test_a_bad_trace_does_not_cost_the_record(self, accounting, trace):
        items, rejections = ingest.read_items([item(trace=trace)])
        assert len(items) == 1 and items[0].trace is None
        assert rejections[0].kept and rejections[0].record_id == items[0].record.record_id

    @given(
        st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5)
    )
    @settings(max_examples=50)
    def test_any_value_of_any_key_is_taken_or_named(self, value):
        for key in record():
            ingest.read_items([item(record() | {key: value})])


def column(raw):
    return base64.b64encode(zlib.compress(raw)).decode()


class TestTraces:
    def test_come_back_as_delivered(self, accounting):
        trace = encode_trace(1000.0, 0.5, {"cpu": [1.5, float("nan")], "gpu[0]": [2.0, 3.0]})
        accounting.deliver(item(trace=trace))
        assert accounting.find(with_traces=True)[0]["trace"] == trace

    def test_end(self):
        assert traces.end_of(encode_trace(1000.0, 0.5, {"cpu": [1.0] * 7})) == 1003.5
        assert traces.end_of(encode_trace(1000.0, 0.5, {})) == 1000.0

    @pytest.mark.parametrize(
        "change",
        [
            {"start": None},
            {"start": True},
            {"start": -1.0},
            {"start": float("nan")},
            {"interval_s": 0.0},
            {"interval_s": "1"},
            {"interval_s": 1e9},
            {"columns": []},
            {"columns": {"cpu": 5}},
            {"columns": {"cpu": "not base64!"}},
            {"columns": {"cpu": base64.b64encode(b"not zlib").decode()}},
            {"columns": {"cpu": column(b"12345")}},
            {"columns": {"cpu": column(b"1234")[:8]}},
            {"columns": {"cpu": column(b"1234"), "dram": column(b"12345678")}},
            {"columns": {"c" * 65: column(b"1234")}},
            {"columns": {f"gpu[{n}]": column(b"1234") for n in range(traces.MAX_COLUMNS + 1)}},
            {"extra": 1},
        ],
    )
    def test_anything_else_is_refused(self, change):
        with pytest.raises(UsageError, match="power trace"):
            traces.end_of({"start": 1.0, "interval_s": 1.0, "columns": {}} | change)

    def test_a_bomb_is_not_unpacked(self, monkeypatch):
        monkeypatch.setattr(traces, "MAX_VALUES", 1000)
        with pytest.raises(UsageError, match="longer than 1000"):
            traces.end_of({"start": 1.0, "interval_s": 1.0, "columns": {"cpu": column(bytes(50 << 20))}})


# The child takes deliveries from a spool as the controller does, and says each id once it is acknowledged.
CHILD = """
import json, sys, time
from pathlib import Path
from slurm_energy.accounting import database, ingest
path, spool = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
database.prepare(path)
print("ready", flush=True)
with database.connect(path) as connection:
    for entries in spool:
        items, _ = ingest.read_items(entries)
        for record_id in ingest.store(connection, items, time.time()):
            print(record_id, flush=True)
"""


def kill_while_storing(database_path: Path, spool: Path, after_lines: int) -> set[str]:
    """Run the child, kill it once it said `after_lines` lines, return the ids it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(database_path), str(spool)], stdout=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(60, child.kill)
    watchdog.start()
    said = []
    try:
        for line in child.stdout:
            said.append(line)
            if len(said) == after_lines:
                child.kill()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        watchdog.cancel()
    return {line.strip() for line in said if line.endswith("\n")} - {"ready"}


def test_kill_9_at_any_moment_loses_and_doubles_nothing(accounting, tmp_path):
    chance = random.Random(2)
    trace = encode_trace(0.0, 1.0, {"cpu": [1.0] * 100})
    batches = [[item(job_id=n * 7 + k, trace=trace) for k in range(7)] for n in range(200)]
    everything = {e["record"]["record_id"] for batch in batches for e in batch}
    spool = tmp_path / "spool.json"
    acknowledged: set[str] = set()
    for _ in range(KILLS):
        # As a node does: what is not acknowledged stays in the spool; some of what is, by a lost answer.
        left = [
            [e for e in batch if e["record"]["record_id"] not in acknowledged or chance.random() < 0.05]
            for batch in batches
        ]
        spool.write_text(json.dumps([batch for batch in left if batch]))
        acknowledged |= kill_while_storing(accounting.path, spool, chance.randint(1, 60))
        stored = [row[0] for row in accounting.rows("SELECT record_id FROM records")]
        assert acknowledged <= set(stored)
        assert len(stored) == len(set(stored))
        assert set(stored) <= everything
        assert accounting.rows("PRAGMA integrity_check") == [("ok",)]
        without_trace = "SELECT count(*) FROM records WHERE id NOT IN (SELECT record FROM traces)"
        assert accounting.rows(without_trace) == [(0,)]
    assert acknowledged
    for batch in batches:
        accounting.deliver(*batch)
    assert accounting.rows("SELECT count(*), count(DISTINCT record_id) FROM records") == [(1400, 1400)]
