"""Tests of the import of Chrome traces.

The tests cover the scanner of the trace file, the conversion of the events, and damaged or hostile files.
"""

from __future__ import annotations

import gzip
import json
import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chrome_trace_judge as judge
import property_examples
import pytest
import timeline_examples as examples
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.diagnosis.event_format import EventFileHeader
from slurm_energy.diagnosis.timeline.chrome_import import MAX_HEAD_EVENTS, read_head, unix_offset_ns
from slurm_energy.diagnosis.timeline.chrome_scanner import (
    MAX_EVENT_CHARACTERS,
    ScannedEvent,
    ScannedValue,
    TraceFileError,
    decompressed,
    scan,
)
from slurm_energy.diagnosis.timeline.profile_events import MAX_OPEN, MAX_PROFILE_LANES, ProfileEvents
from slurm_energy.diagnosis.timeline.trace_writer import TraceWriter
from slurm_energy.diagnosis.timeline.window import EventTally, TimeWindow

START_S = examples.START_S
WINDOW = TimeWindow.of_seconds(START_S, START_S, START_S + 10)


def pieces(data: bytes, size: int = 11) -> Iterator[bytes]:
    return (data[index : index + size] for index in range(0, len(data), size))


def scanned(data: bytes, size: int = 11) -> tuple[list[Any], str]:
    """Scan a trace in small pieces; return the items that were found, and the error message.

    The error message is empty if there was no error.
    """
    items = []
    try:
        for item in scan(decompressed(pieces(data, size))):
            items.append((item.key if isinstance(item, ScannedValue) else item.offset, item.value))
    except TraceFileError as error:
        return items, str(error)
    return items, ""


def imported(document: Any, offset_ns: int = 0) -> tuple[list[dict[str, Any]], EventTally, str]:
    """Test helper: import a trace into a timeline and return the result.

    The result is a tuple of three values: the events that were written, the counts of all events (shown,
    outside the time window, refused), and the error message. The message is empty if the import
    succeeded.
    """
    parts: list[bytes] = []
    writer = TraceWriter(parts.append, {})
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    events = ProfileEvents("t.json", 1, offset_ns, WINDOW, writer, None, has_gpu=False)
    fault = ""
    try:
        events.add(scan(decompressed(pieces(data, 4096))))
    except TraceFileError as error:
        fault = str(error)
    writer.finish()
    written = judge.check(judge.parse(b"".join(parts).decode("ascii")), nested=False)
    return written, events.tally, fault


EVENT = {"ph": "X", "name": "é", "ts": 1.5, "dur": 2}
TEXT = json.dumps([EVENT, EVENT], ensure_ascii=False)
MEMBERS = json.dumps({"a": {"b": [1]}, "traceEvents": [EVENT], "z": 12})


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_pieces_and_compression_do_not_change_the_events(size: int, compress: Any) -> None:
    second = TEXT.encode().rindex(b"{")
    assert scanned(compress(TEXT.encode()), size) == ([(1, EVENT), (second, EVENT)], "")
    assert scanned(compress(MEMBERS.encode()), size) == ([("a", {"b": [1]}), (34, EVENT), ("z", 12)], "")
    assert scanned(compress(b"\xef\xbb\xbf [ ]"), size) == ([], "")


@pytest.mark.parametrize(
    ("data", "count", "fault"),
    [
        (b"", 0, "byte 0: the file is empty"),
        (b" \n ", 0, "byte 3: the file is empty"),
        (b"hello", 0, "byte 0: neither a JSON object nor a list"),
        (b"7", 0, "byte 0: neither a JSON object nor a list"),
        (b'{"traceEvents":[{"a":1}', 1, "byte 23: the file ends too early"),
        (b'{"traceEvents":[{"a":1},{"b"', 1, "byte 24: the file ends in the middle of a value"),
        (b'{"traceEvents":[{"a":1}]', 1, "byte 24: expected a key"),
        (b'{"traceEvents":[{"a":1} {"a" 2}]}', 1, "byte 24: the file ends in the middle of a value"),
        (b"[1, 2, nul]", 2, "byte 7: not JSON (Expecting value)"),
        (b"{x:1}", 0, "byte 1: expected a key"),
        (b'{"x" 1}', 0, "byte 5: expected ':' after a key"),
        (b'[{"a":' + b"[" * 5000, 0, "byte 1: nested too deeply"),
        (b'[{"a":' + b"9" * 5000 + b"}]", 0, "byte 1: a number has too many digits"),
        (b'[{"a":1}', 1, ""),
        (b'[{"a":1},\n', 1, ""),
        (b'{"traceEvents":7}', 1, ""),
        (b"\xff\xfe[", 0, "byte 0: neither a JSON object nor a list"),
        (gzip.compress(b'[{"a":1},{"b":2}', mtime=0)[:-6], 2, "byte 16: the compressed data is cut off"),
        (b"\x1f\x8b\x08\x00garbage-garbage", 0, "byte 0: the compressed data is damaged"),
    ],
)
def test_damage_is_reported_with_its_place_and_what_precedes_it_is_kept(
    data: bytes, count: int, fault: str
) -> None:
    items, found = scanned(data)
    assert len(items) == count
    assert found.startswith(fault) if fault else not found


def test_an_event_of_unlimited_length_ends_the_scan_in_bounded_memory() -> None:
    endless = (b'[{"name":"' if number == 0 else b"x" * 65536 for number in range(1 << 20))
    tracemalloc.start()
    with pytest.raises(TraceFileError, match="byte 1: not JSON"):
        list(scan(endless))
    assert tracemalloc.get_traced_memory()[1] < 16 * MAX_EVENT_CHARACTERS
    tracemalloc.stop()


def test_a_compressed_bomb_is_read_in_bounded_memory() -> None:
    bomb = gzip.compress(b"[" + b" " * (12 << 20) + b"]")
    tracemalloc.start()
    assert list(scan(decompressed(pieces(bomb, 1 << 16)))) == []
    assert tracemalloc.get_traced_memory()[1] < 3 << 20
    tracemalloc.stop()


def test_a_trace_of_the_pytorch_profiler_is_imported_with_its_lanes() -> None:
    events, tally, fault = imported(examples.profile())
    assert (fault, tally.shown, tally.refused) == ("", 7, {})
    lanes = judge.lane_names(events)
    assert [slice_["dur"] for slice_ in lanes["t.json python (77)", "thread 78"]] == [100.0]
    assert lanes["t.json python (77)", "thread 77"][0]["ts"] == pytest.approx(1e6, abs=1)
    assert lanes["t.json 0", "thread 7"][0]["name"] == "gemm"
    assert judge.counters(events) == {("t.json python (77)", "memory"): [(1e6, 5.0)]}
    arrows = [event for event in events if event["ph"] in "sf"]
    assert len({event["id"] for event in arrows}) == 1
    assert len({event["pid"] for event in arrows}) == 2


def test_events_that_a_killed_program_did_not_end_are_shown_to_the_end() -> None:
    base = START_S * 1e6
    events, tally, _ = imported(
        [
            {"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": base},
            {"ph": "B", "name": "inner", "pid": 1, "tid": 1, "ts": base + 10},
            {"ph": "X", "name": "last", "pid": 1, "tid": 2, "ts": base + 50, "dur": 1},
        ]
    )
    assert tally.shown == 3
    open_events = {event["name"]: event for event in events if event.get("args", {}).get("unfinished")}
    assert {name: event["dur"] for name, event in open_events.items()} == {"outer": 50.0, "inner": 40.0}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (7, "not an object"),
        (None, "not an object"),
        ([], "not an object"),
        ({}, "no valid 'ph'"),
        ({"ph": 5}, "no valid 'ph'"),
        ({"ph": "X", "dur": 1}, "no valid 'ts'"),
        ({"ph": "X", "ts": float("nan"), "dur": 1}, "no valid 'ts'"),
        ({"ph": "X", "ts": float("inf"), "dur": 1}, "no valid 'ts'"),
        ({"ph": "X", "ts": [], "dur": 1}, "no valid 'ts'"),
        ({"ph": "X", "ts": True, "dur": 1}, "no valid 'ts'"),
        ({"ph": "X", "ts": 10**400, "dur": 1}, "no valid 'ts'"),
        ({"ph": "X", "ts": START_S * 1e6}, "no valid 'dur'"),
        ({"ph": "X", "ts": START_S * 1e6, "dur": -1}, "no valid 'dur'"),
        ({"ph": "X", "ts": START_S * 1e6, "dur": float("nan")}, "no valid 'dur'"),
        ({"ph": "E", "ts": START_S * 1e6}, "an end without a beginning"),
        ({"ph": "C", "ts": START_S * 1e6, "args": {"x": "y"}}, "a counter without numbers"),
        ({"ph": "s", "ts": START_S * 1e6, "id": {}}, "an arrow without a valid 'id'"),
        ({"ph": "N", "ts": START_S * 1e6}, "kinds of events that are not imported"),
    ],
)
def test_invalid_events_are_counted_with_the_place_of_the_first(event: Any, reason: str) -> None:
    valid = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": START_S * 1e6, "dur": 1}
    data = b"[" + json.dumps(valid).encode() + b"," + json.dumps(event).encode() + b"]"
    events, tally, fault = imported(data)
    assert (tally.shown, fault) == (1, "")
    assert tally.refused == {reason: 1}
    assert tally.first_offsets == {reason: data.index(b",", len(json.dumps(valid))) + 1}
    assert len([one for one in events if one["ph"] == "X"]) == 1


def test_lanes_and_open_events_of_a_trace_are_limited() -> None:
    base = START_S * 1e6
    lanes = [{"ph": "X", "pid": n, "tid": n, "ts": base, "dur": 1} for n in range(MAX_PROFILE_LANES + 3)]
    assert sum(imported(lanes)[1].refused.values()) == 3
    deep = [{"ph": "B", "pid": 1, "tid": 1, "ts": base}] * (MAX_OPEN + 2)
    assert sum(imported(deep)[1].refused.values()) == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
event_objects = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(list("XBEiIRCMstfbeN")) | json_values,
        "ts": st.floats(START_S * 1e6 - 1e7, START_S * 1e6 + 2e7) | json_values,
        "dur": st.floats(0, 1e7) | json_values,
        "pid": st.integers(0, 3) | json_values,
        "tid": st.integers(0, 3) | json_values,
        "name": st.text(max_size=8) | st.sampled_from(["process_name", "thread_name"]) | json_values,
        "args": st.fixed_dictionaries({}, optional={"name": st.text(max_size=4) | json_values}) | json_values,
        "id": st.integers() | json_values,
        "cat": json_values,
        "s": json_values,
    },
)


@property_examples.examples(40)
@given(st.lists(event_objects | json_values, max_size=8))
def test_any_events_become_a_valid_trace(events: list[Any]) -> None:
    _, tally, fault = imported(events)
    assert not fault
    assert tally.shown >= 0


@property_examples.examples(60)
@given(st.binary(max_size=60) | st.text(alphabet='[]{}":,0129.eE-+ntfalsrue\\ ', max_size=40).map(str.encode))
def test_any_bytes_become_a_valid_trace_or_a_fault(data: bytes) -> None:
    for content in (data, b'{"traceEvents":[' + data, gzip.compress(b"[" + data)[: max(12, len(data))]):
        imported(content)


def offset_of(document: Any, *processes: EventFileHeader, nodes: tuple[str, ...] = ()) -> int | None:
    head = read_head(scan(iter([json.dumps(document).encode()])))
    return unix_offset_ns(head, WINDOW, processes, nodes)


def test_the_clock_of_a_trace_is_recognised() -> None:
    assert offset_of(examples.profile()) == 0
    relative = [{"ph": "X", "ts": 1e6, "dur": 5, "pid": 1, "tid": 1}]
    assert offset_of({"baseTimeNanoseconds": START_S * 10**9, "traceEvents": relative}) == START_S * 10**9
    assert offset_of(examples.profile(baseTimeNanoseconds=START_S * 10**9)) == 0
    process = examples.header()
    monotonic = [{"ph": "X", "ts": 501e6, "dur": 5, "pid": 1, "tid": 1}]
    assert offset_of(monotonic, examples.header(unix_offset_ns=5), process) == process.unix_offset_ns
    assert offset_of(monotonic) is None
    assert offset_of([]) == 0


@pytest.mark.parametrize(
    ("rank", "pid", "node"),
    [
        (1, 7, "n2"),
        (None, 4712, "n2"),
        (1, 4712, "n2"),
        (1, 4711, "n1"),  # torchrun numbers the ranks, the event files contain Slurm's numbers
        (2, 7, None),
        (None, 7, None),
    ],
)
def test_the_clock_of_a_trace_is_that_of_its_process_and_never_of_another_node(
    rank: int | None, pid: int, node: str | None
) -> None:
    processes = [
        examples.header(),
        examples.header(
            node="n2", rank=1, pid=4712, unix_offset_ns=examples.START_NS - 496 * examples.SECOND
        ),
    ]
    document = {
        "distributedInfo": {"rank": rank},
        "traceEvents": [{"ph": "X", "ts": 501e6, "dur": 5, "pid": pid, "tid": 1}],
    }
    offsets = {process.node: process.unix_offset_ns for process in processes}
    for listed in (processes, processes[::-1]):
        assert offset_of(document, *listed) == offsets.get(node or "")


def test_a_trace_of_any_process_has_an_unknown_clock_if_a_node_has_no_event_file() -> None:
    process, monotonic = examples.header(), [{"ph": "X", "ts": 501e6, "dur": 5, "pid": 1, "tid": 1}]
    assert offset_of(monotonic, process, nodes=("n1",)) == process.unix_offset_ns
    assert offset_of(monotonic, process, nodes=("n1", "n2")) is None


@pytest.mark.parametrize("unix_us", [0.0, START_S * 1e6])
def test_the_clock_and_rank_of_a_long_trace_may_follow_its_events(unix_us: float) -> None:
    event = {"ph": "X", "ts": unix_us + 1e6, "dur": 5, "pid": 1, "tid": 1}
    document = {
        "traceEvents": [event] * (MAX_HEAD_EVENTS + 1),
        "baseTimeNanoseconds": START_S * 10**9,
        "distributedInfo": {"rank": 3},
    }
    head = read_head(scan(iter([json.dumps(document).encode()])))
    assert (head.unix_base_ns, head.rank) == (0 if unix_us else START_S * 10**9, 3)


@pytest.mark.parametrize("base", [math.nan, 1e300, "x", None, True, [], 10**400])
def test_a_base_time_that_is_no_time_is_ignored(base: Any) -> None:
    relative = [{"ph": "X", "ts": 1e6, "dur": 5}]
    assert offset_of({"baseTimeNanoseconds": base, "traceEvents": relative}) is None


def test_the_head_contains_the_rank_and_the_end_of_the_trace() -> None:
    head = read_head(scan(iter([json.dumps(examples.profile()).encode()])), to_the_end=True)
    assert (head.rank, head.has_gpu) == (0, True)
    assert head.unix_span_s == pytest.approx((START_S + 1, START_S + 2.0001), abs=1e-6)
    for rank in (-1, "0", None, True, 2**40):
        document = examples.profile(distributedInfo={"rank": rank})
        assert read_head(scan(iter([json.dumps(document).encode()]))).rank is None


def test_times_in_text_are_numbers_as_the_format_permits() -> None:
    event = {"ph": "X", "name": "a", "pid": "main", "tid": "io", "ts": str(START_S * 10**6), "dur": "5"}
    events, tally, _ = imported([event])
    assert tally.shown == 1
    assert judge.lane_names(events)["t.json main", "thread io"][0]["dur"] == 5.0


def test_examples_are_scanned_as_json_reads_them(tmp_path: Path) -> None:
    path = examples.write_profile(tmp_path / "t.json", examples.profile())
    items = list(scan(iter([path.read_bytes()])))
    values = [item.value for item in items if isinstance(item, ScannedEvent)]
    assert values == json.loads(path.read_text())["traceEvents"]
