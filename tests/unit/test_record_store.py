"""Test deliveries of energy records to the controller.

Each record is stored exactly once, even if the controller is killed. No acknowledged record is lost. Invalid
items are named in the response and omitted from the database.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import multiprocessing
import os
import random
import threading
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from sqlalchemy import select
from store_examples import NOW, Accounting, item, record

from slurm_energy.accounting import retention
from slurm_energy.accounting.backups import integrity
from slurm_energy.accounting.json_fields import array_length, text_value
from slurm_energy.accounting.records import observations, record_store, traces
from slurm_energy.accounting.records.plausibility import MAX_WATTS, PlausibilityCheck
from slurm_energy.accounting.records.record_store import RefusalOutcome
from slurm_energy.accounting.schema import observation_tables, tables
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import UsageError
from slurm_energy.records import EnergyRecord
from slurm_energy.reports.trace import encode_trace


@pytest.fixture
def accounting(store_location):
    return Accounting(store_location)


class TestObservations:
    def test_they_are_stored_once_and_deleted_by_age_or_with_their_records(self, accounting):
        seen = {"node": "n1", "series": [], "ranks": []}
        entries = [item(job_id=n, end=1100.0 + n) | {"observation": seen} for n in range(4)]
        accounting.deliver(*entries)
        accounting.deliver(*entries)
        count = "SELECT count(*) FROM observations"
        assert accounting.rows(count) == [(4,)]
        with accounting.connect() as connection:
            assert traces.drop_old_attachments(connection, observation_tables.observations, 1101.5) == 2
            counts = retention.delete_old(connection, ("observations",), 1102.5)
        assert counts == {"observations": 1}
        assert accounting.rows(count) == [(1,)]
        assert len(accounting.find()) == 4
        with accounting.connect() as connection:
            retention.delete_old(connection, ("records",), 2000.0)
        assert accounting.rows(count) == [(0,)]

    def test_text_that_repeats_does_not_fill_the_database(self, accounting):
        seen = {"node": "n1", "series": [], "ranks": [{"phases": {"step": 1}}] * 100_000}
        accounting.deliver(item() | {"observation": seen})
        ((size,),) = accounting.rows("SELECT length(body) FROM observations")
        assert size < 100_000
        ids = [row_id for (row_id,) in accounting.rows("SELECT id FROM records")]
        with accounting.connect() as connection:
            (text,) = observations.observations_json(connection, ids)
        answer = json.loads(text)
        assert answer.pop("record")["job_id"] == item()["record"]["job_id"]
        assert answer == seen

    @pytest.mark.parametrize(
        ("raw", "fault"),
        [
            ([], "not a JSON object"),
            ({str(n): n for n in range(99)}, "at most 32 keys"),
            ({"node": "n2"}, "another node"),
            ({"series": []}, "another node"),
            ({"node": "n1", "x": float("nan")}, "cannot be stored"),
            ({"node": "n1", "x": "y" * 9_000_000}, "too long"),
        ],
    )
    def test_bad_ones_are_refused_and_their_records_stored(self, raw, fault):
        items, (refusal,) = record_store.read_items([item() | {"observation": raw}])
        assert fault in refusal.error
        assert refusal.outcome is RefusalOutcome.OBSERVATION_REJECTED
        assert [one.observation for one in items] == [None]


class TestOnce:
    def test_a_second_delivery_is_accepted_without_effect(self, accounting):
        entries = [item(job_id=n, trace=encode_trace(0.0, 1.0, {"cpu": [float(n)]})) for n in range(3)]
        first = accounting.deliver(*entries)
        assert accounting.deliver(*entries) == first == [e["record"]["record_id"] for e in entries]
        assert accounting.rows("SELECT count(*), (SELECT count(*) FROM traces) FROM records") == [(3, 3)]

    def test_a_record_twice_in_one_delivery(self, accounting):
        entry = item()
        assert len(accounting.deliver(entry, entry)) == 2
        assert len(accounting.find()) == 1

    def test_the_first_of_one_id_wins(self, accounting):
        accounting.deliver(item(record_id="a", policy="edp"))
        accounting.deliver(item(record_id="a", policy="cap", start=5.0))
        assert [r["policy"] for r in accounting.find()] == ["edp"]

    def test_a_recreated_spool_has_new_ids_but_the_same_records(self, accounting):
        again = [item(record_id="old"), item(record_id="new", trace=encode_trace(0.0, 1.0, {"cpu": [1.0]}))]
        assert accounting.deliver(*again) == ["old", "new"]
        assert [r["record_id"] for r in accounting.find()] == ["old"]

    def test_the_fields_that_identify_a_record(self, accounting):
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
            {"record": record() | {"schema": 0}},
            {"record": record() | {"schema": True}},
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
    def test_are_named_and_the_others_stored(self, accounting, bad):
        items, refusals = record_store.read_items([item(job_id=1), bad, item(job_id=2)])
        assert [i.record.job_id for i in items] == [1, 2]
        ((index, error, outcome),) = [(r.index, r.error, r.outcome) for r in refusals]
        assert (index, outcome) == (1, RefusalOutcome.REJECTED)
        assert error and "\n" not in error and len(error) < 300

    def test_deep_nesting_is_named(self):
        for depth in range(800, 1000, 7):  # up to the limit of Python's JSON parser
            try:
                asked = json.loads('{"a":' * depth + "1" + "}" * depth)
            except RecursionError:
                break
            _, rejections = record_store.read_items([item(record() | {"requested": asked})])
            assert len(rejections) == 1

    @pytest.mark.parametrize("data", [None, {}, "items", 3, [{}] * (record_store.MAX_ITEMS + 1)])
    def test_a_delivery_without_a_list_of_items(self, data):
        with pytest.raises(UsageError):
            record_store.read_items(data)

    @pytest.mark.parametrize("trace", [{"start": 1}, {"start": 10**400, "interval_s": 1, "columns": {}}])
    def test_a_bad_trace_does_not_cost_the_record(self, accounting, trace):
        items, rejections = record_store.read_items([item(trace=trace)])
        assert len(items) == 1 and items[0].trace is None
        assert rejections[0].outcome is RefusalOutcome.TRACE_REJECTED
        assert rejections[0].record_id == items[0].record.record_id

    @given(
        st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5)
    )
    @examples(50)
    def test_any_value_of_any_key_is_stored_or_named(self, value):
        for key in record():
            record_store.read_items([item(record() | {key: value})])


NEWER = {
    "carbon_grams": 1.5,
    "phases": [{"name": "train", "joules": [1, 2.5, None]}, {"name": "\u00fc", "ok": True}],
    "extra": {"nested": "kept"},
}


class TestVersionSkew:
    def test_unknown_keys_are_stored_and_returned(self, accounting):
        sent = json.loads(json.dumps(record() | NEWER))
        sent["components"][0] |= {"socket": 3}
        sent["applied"] = [{"setting": "x", "original": "1", "requested": "2", "applied": "2", "by": "edp"}]
        accounting.deliver(item(sent))
        (found,) = accounting.find()
        assert {key: found[key] for key in sent} == sent

    @pytest.mark.parametrize("schema", [2, 99, 10**30])
    def test_a_newer_schema_is_retried_and_delays_no_other_record(self, accounting, schema):
        newer = {"schema": schema, "record_id": "r", "anything": ["else"]}
        items, refusals = record_store.read_items([item(job_id=1), {"record": newer}, item(job_id=2)])
        assert [i.record.job_id for i in items] == [1, 2]
        ((index, record_id, outcome, error),) = [(r.index, r.record_id, r.outcome, r.error) for r in refusals]
        assert (index, record_id, outcome) == (1, "r", RefusalOutcome.RETRY)
        assert "newer than 1" in error and "upgrade the controller" in error and "\n" not in error

    @pytest.mark.parametrize(
        "change",
        [
            {f"key{n}": n for n in range(65)},
            {"k" * 257: 1},
            {"deep": json.loads("[" * 17 + "]" * 17)},
            {"infinite": float("inf")},
            {"job": {"name": "forged"}},
            {"trace": {}},
            {"long": "x" * record_store.MAX_RECORD_BYTES},
        ],
        ids=lambda change: next(iter(change))[:10],
    )
    def test_unknown_keys_are_bounded(self, change):
        """A record with too many, too long or too deep unknown keys is rejected.

        Infinity or 1000 levels of nesting would make SQLite refuse the JSON of every response with the
        record.
        """
        items, refusals = record_store.read_items([item(record() | change), item(job_id=2)])
        assert [i.record.job_id for i in items] == [2]
        assert [r.outcome for r in refusals] == [RefusalOutcome.REJECTED]

    def test_infinity_in_a_number_that_json_allows(self):
        """The record store rejects a record with the number 1e999, which Python parses as infinity.

        Python's JSON parser reports the constant `Infinity` to a hook, but not the number 1e999.
        """
        data = json.loads(json.dumps([item(record() | {"x": 0, "mean": "@"})]).replace('"@"', "1e999"))
        assert [r.outcome for r in record_store.read_items(data)[1]] == [RefusalOutcome.REJECTED]

    @given(
        st.dictionaries(
            st.text(min_size=1, max_size=20).filter(lambda key: key not in {*record(), "job", "trace"}),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers()
                | st.floats(allow_nan=False, allow_infinity=False)
                | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
                max_leaves=8,
            ),
            max_size=5,
        )
    )
    @examples(60)
    def test_any_unknown_keys_survive_reading_and_writing(self, extra):
        sent = json.loads(json.dumps(record() | extra))
        try:
            read = EnergyRecord.from_json(sent)
        except UsageError:
            return  # a number too large, or nesting too deep
        assert json.loads(json.dumps(read.to_json())) == sent


def powered(joules, name="cpu", **more):
    part = {"name": name, "energy_joules": joules, "source": "x", "quality": "measured"}
    return record(**more) | {"components": [part]}


class TestPlausibility:
    def outcome(self, data, check=None):
        items, refusals = record_store.read_items([item(data)], check, now=NOW)
        assert len(items) + len(refusals) == 1
        return refusals[0].outcome if refusals else None

    @pytest.mark.parametrize("name", ["cpu", "dram", "gpu[0]", "other", "node"])
    def test_energy_is_bounded_by_time_and_power(self, name):
        watts = MAX_WATTS[name.partition("[")[0]]
        assert self.outcome(powered(0.99 * watts * 160, name)) is None  # 100 s plus the charging delay
        assert self.outcome(powered(1.01 * watts * 160, name)) is RefusalOutcome.REJECTED
        assert self.outcome(powered(9e300, name)) is RefusalOutcome.REJECTED
        assert self.outcome(powered(None, name)) is None

    def test_the_site_may_raise_a_bound(self):
        sent = powered(1.0e6 * 100, "node")
        assert self.outcome(sent) is RefusalOutcome.REJECTED
        assert self.outcome(sent, PlausibilityCheck.with_site_values({"node": 1.0e6})) is None

    def test_many_gpus_cannot_hide_an_excess_of_one(self):
        parts = [
            {"name": f"gpu[{n}]", "energy_joules": 4e5, "source": "x", "quality": "measured"}
            for n in range(1000)
        ]
        assert self.outcome(record() | {"components": parts}) is RefusalOutcome.REJECTED

    @pytest.mark.parametrize(
        ("change", "outcome"),
        [
            ({"mean_watts": 1e300}, RefusalOutcome.REJECTED),
            ({"peak_watts": 1e6}, RefusalOutcome.REJECTED),
            ({"seconds_above_cap": 1e9}, RefusalOutcome.REJECTED),
            ({"throttled_seconds": 1e9}, RefusalOutcome.REJECTED),
            ({"uncertain_seconds": 1e9}, RefusalOutcome.REJECTED),
            ({"start": 0.0, "end": NOW}, RefusalOutcome.REJECTED),
            ({"end": 1e300}, RefusalOutcome.REJECTED),
            ({"start": NOW + 90_000, "end": NOW + 90_001}, RefusalOutcome.REJECTED),
            ({"start": NOW + 3600, "end": NOW + 3601}, RefusalOutcome.RETRY),
            ({"start": NOW, "end": NOW + 300}, None),
            ({"mean_watts": 900.0, "peak_watts": 1500.0, "throttled_seconds": 100.0}, None),
        ],
    )
    def test_bounds_on_other_figures(self, change, outcome):
        assert self.outcome(record() | change) is outcome

    def test_a_component_counts_once(self):
        parts = record()["components"]
        assert self.outcome(record() | {"components": [*parts, parts[0]]}) is RefusalOutcome.REJECTED


def test_a_value_that_the_database_refuses_does_not_lose_the_others(accounting):
    """The database refuses one record of a delivery, and the other records are stored.

    One record contains a value that the database cannot store. Only this record is rejected. The rejection
    must not roll back the whole delivery again and again.
    """
    items, _ = record_store.read_items([item(job_id=n) for n in range(4)])
    items[2] = dataclasses.replace(items[2], record=dataclasses.replace(items[2].record, job_id=2**70))
    with accounting.connect() as connection:
        accepted, refusals = record_store.store(connection, items, 1.0)
    assert len(accepted) == 3
    assert [(r.index, r.outcome) for r in refusals] == [(2, RefusalOutcome.REJECTED)]
    assert accounting.ids() == [0, 1, 3]


def test_a_record_with_a_null_character_does_not_stop_the_evaluation_of_others(accounting):
    """A faulty node cannot stop the learning from the records of all nodes, or the priority by energy."""
    accounting.deliver(
        item(job_id=1, fingerprint="f" * 64, gpus=(0, 1)),
        item(job_id=2, notes=("a\0b",), gpus=(0,)),
        item(job_id=3, notes=("a\\\0b",), gpus=(0,)),
    )
    with accounting.connect() as connection:
        body = tables.records.c.body
        values = (text_value(connection, body, "fingerprint"), array_length(connection, body, "gpus"))
        rows = connection.execute(select(*values).order_by(tables.records.c.job_id)).all()
    assert tuple(rows[0]) == ("f" * 64, 2)
    for row in rows[1:]:
        assert row[0] is None and row[1] in (None, 1)


@pytest.mark.parametrize("note", [r"\u0000", r"\\u0000", r"\\\u0000"])
def test_a_written_escape_of_a_null_character_hides_no_fields(accounting, note):
    """A user whose flag is quoted in a note cannot hide the GPUs of the job from the usage of the user."""
    accounting.deliver(item(job_id=1, notes=(note,), gpus=(0, 1)))
    with accounting.connect() as connection:
        gpus = array_length(connection, tables.records.c.body, "gpus")
        assert connection.execute(select(gpus)).scalar_one() == 2


@pytest.mark.parametrize("together", [False, True])
def test_a_node_cannot_take_the_record_id_of_another_node(accounting, together):
    """Users can read the ids of running jobs. The true record is refused, not lost as if it were stored."""
    forged = item(node="evil", uid=6, record_id="known")
    true = item(node="n1", record_id="known", trace=encode_trace(0.0, 1.0, {"cpu": [1.0]}))
    other = item(node="n1", job_id=2, record_id="other")
    items, _ = record_store.read_items([forged, true, other])
    with accounting.connect() as connection:
        if not together:
            record_store.store(connection, items[:1], 1.0)
        accepted, refusals = record_store.store(connection, items if together else items[1:], 1.0)
    assert accepted == (["known", "other"] if together else ["other"])
    assert [(one.record_id, one.outcome) for one in refusals] == [("known", RefusalOutcome.REJECTED)]
    assert "another node" in refusals[0].error
    assert accounting.rows("SELECT count(*) FROM traces") == [(0,)]
    with accounting.connect() as connection:
        assert record_store.store(connection, items[:1], 1.0) == (["known"], [])


def column(raw):
    return base64.b64encode(zlib.compress(raw)).decode()


def extent(trace, max_values=10**6):
    return traces.check_trace(trace, elapsed_s=100.0, max_values=max_values)


class TestTraces:
    def test_are_returned_as_delivered(self, accounting):
        trace = encode_trace(1000.0, 0.5, {"cpu": [1.5, float("nan")], "gpu[0]": [2.0, 3.0]})
        accounting.deliver(item(trace=trace))
        assert accounting.find(with_traces=True)[0]["trace"] == trace

    def test_end(self):
        assert extent(encode_trace(1000.0, 0.5, {"cpu": [1.0] * 7})) == (1003.5, 7)
        assert extent(encode_trace(1000.0, 0.5, {})) == (1000.0, 0)

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
            {f"extra{n}": n for n in range(traces.MAX_EXTRA_KEYS + 1)},
        ],
    )
    def test_malformed_traces_are_refused(self, change):
        with pytest.raises(UsageError, match="power trace"):
            extent({"start": 1.0, "interval_s": 1.0, "columns": {}} | change)

    def test_a_bomb_is_unpacked_at_most_to_the_length_of_its_record(self):
        bomb = {"start": 1.0, "interval_s": 1.0, "columns": {"cpu": column(bytes(50 << 20))}}
        with pytest.raises(UsageError, match="longer than 3800 values"):
            extent(bomb)

    def test_many_columns_of_a_bomb_share_one_bound(self):
        columns = {f"gpu[{n}]": column(bytes(4000)) for n in range(100)}
        with pytest.raises(UsageError, match="more than 50000 values"):
            extent({"start": 1.0, "interval_s": 1.0, "columns": columns}, max_values=50_000)

    def test_a_delivery_of_bombs_is_deferred(self, accounting, monkeypatch):
        monkeypatch.setattr(record_store, "MAX_DELIVERY_VALUES", 100)
        sent = [item(job_id=n, trace=encode_trace(1000.0, 1.0, {"cpu": [1.0] * 100})) for n in range(3)]
        items, refusals = record_store.read_items(sent)
        assert [i.record.job_id for i in items] == [0]
        assert [(r.index, r.outcome) for r in refusals] == [
            (1, RefusalOutcome.RETRY),
            (2, RefusalOutcome.RETRY),
        ]

    @pytest.mark.parametrize("end", [b"", b"x"])
    def test_bombs_that_are_refused_count_as_well(self, monkeypatch, end):
        monkeypatch.setattr(record_store, "MAX_DELIVERY_VALUES", 10_000)
        bomb = {"start": 1000.0, "interval_s": 1.0, "columns": {"cpu": column(bytes(4 * 3700) + end)}}
        if not end:  # one more column, of another length
            bomb["columns"]["dram"] = column(bytes(4))
        items, refusals = record_store.read_items([item(job_id=n, trace=bomb) for n in range(10)])
        assert [i.record.job_id for i in items] == [0, 1, 2]
        kinds = [refusal.outcome for refusal in refusals]
        assert kinds == [RefusalOutcome.TRACE_REJECTED] * 3 + [RefusalOutcome.RETRY] * 7

    def test_keys_of_a_newer_release_are_returned(self, accounting):
        trace = encode_trace(1000.0, 1.0, {"cpu": [1.0]}) | {"phases": [{"name": "train", "at": [0, 7]}]}
        accounting.deliver(item(trace=trace))
        assert accounting.find(with_traces=True)[0]["trace"] == trace


def store_spool(location: Path | str, spool: Path, output: int) -> None:
    """Store the deliveries of an agent's spool in the database, as the controller does.

    Args:
        location: the database.
        spool: JSON file with the deliveries.
        output: file descriptor to which the id of each record is written once it is acknowledged.
    """
    store = Store(location)
    deliveries = json.loads(spool.read_text())
    os.write(output, b"ready\n")
    for entries in deliveries:
        items, _ = record_store.read_items(entries)
        for record_id in asyncio.run(store.write(record_store.store, items, time.time()))[0]:
            os.write(output, f"{record_id}\n".encode())
    store.close()


def kill_while_storing(location: Path | str, spool: Path, after_lines: int) -> set[str]:
    """Store the records of a spool in a child process, and kill the process during the work.

    The process is killed after it has printed `after_lines` lines. Return the ids of the records that the
    process has acknowledged.
    """
    read, write = os.pipe()
    # A fork has the modules already: hundreds of children that import them would take minutes.
    child = multiprocessing.get_context("fork").Process(target=store_spool, args=(location, spool, write))
    child.start()
    os.close(write)
    watchdog = threading.Timer(60, child.kill)
    watchdog.start()
    said = []
    try:
        with os.fdopen(read) as lines:
            for line in lines:
                said.append(line)
                if len(said) == after_lines:
                    child.kill()
    finally:
        child.kill()
        child.join()
        child.close()
        watchdog.cancel()
        watchdog.join()
    return {line.strip() for line in said if line.endswith("\n")} - {"ready"}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.soak)])
def test_kill_9_at_any_moment_loses_and_duplicates_nothing(accounting, tmp_path, kills):
    chance = random.Random(2)
    trace = encode_trace(0.0, 1.0, {"cpu": [1.0] * 100})
    batches = [[item(job_id=n * 7 + k, trace=trace) for k in range(7)] for n in range(200)]
    everything = {e["record"]["record_id"] for batch in batches for e in batch}
    spool = tmp_path / "spool.json"
    acknowledged: set[str] = set()
    for _ in range(kills):
        # As on a node: unacknowledged records stay spooled, and some acknowledged ones after a lost response.
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
        integrity.verify(accounting.path)
        without_trace = "SELECT count(*) FROM records WHERE id NOT IN (SELECT record FROM traces)"
        assert accounting.rows(without_trace) == [(0,)]
    assert acknowledged
    for batch in batches:
        accounting.deliver(*batch)
    assert accounting.rows("SELECT count(*), count(DISTINCT record_id) FROM records") == [(1400, 1400)]
