"""Tests of Chrome traces that are built from event files, signals and findings of a job."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import chrome_trace_judge as judge
import property_examples
import pytest
import timeline_examples as examples
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_energy.diagnosis.event_format import INTERVAL
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps, StepIntervals, StepOutlier
from slurm_energy.diagnosis.timeline.overview import COLUMNS, MAX_ROWS, Overview
from slurm_energy.diagnosis.timeline.process_events import MAX_OVERLAPPING, MAX_PROCESS_LANES, ProcessEvents
from slurm_energy.diagnosis.timeline.signal_tracks import counter_points
from slurm_energy.diagnosis.timeline.trace_text import json_args, json_text
from slurm_energy.diagnosis.timeline.trace_writer import TraceWriter
from slurm_energy.diagnosis.timeline.window import EventTally, TimeWindow
from slurm_energy.profiling.timeline_build import TimelineBuilder, TimelineSources
from slurm_energy.profiling.timeline_inputs import EventInput, find_inputs

START_S, SECOND = examples.START_S, examples.SECOND
WINDOW = TimeWindow.of_seconds(START_S, START_S, START_S + 10)
HOSTILE = '</script><img src=x onerror=alert(1)> "\\ \x00\x07\n \u202e\u200f \ud800 ' + "x" * 300


def trace(sources: TimelineSources, overview: Overview | None = None) -> dict[str, Any]:
    """Build a timeline from example sources, and return the written Chrome trace after parsing it."""
    parts: list[bytes] = []
    writer = TraceWriter(parts.append, {"job": "12", "nothing": None})
    TimelineBuilder(sources, writer, overview, lambda done, total: None).build()
    writer.finish()
    return judge.parse(b"".join(parts).decode("ascii"))


def events_of(
    records: Sequence[Any], window: TimeWindow = WINDOW, **changes: Any
) -> tuple[list[Any], EventTally]:
    """Write the records of one process to a trace file, and return the events of the file.

    The second result counts three kinds of events: those in the file, those outside the time window, and
    those that were refused.
    """
    parts: list[bytes] = []
    writer = TraceWriter(parts.append, {})
    process = ProcessEvents(
        examples.header(**changes), window, writer, writer.lanes.add_group("p"), None, None
    )
    process.add([(*record[:5], 1, record[5]) for record in records])
    writer.finish()
    return judge.check(judge.parse(b"".join(parts).decode("ascii"))), process.tally


def inputs(*paths: Path) -> list[EventInput]:
    return [source for path in paths for source in find_inputs(path) if isinstance(source, EventInput)]


def test_event_files_become_lanes_by_process_phase_and_gpu(tmp_path: Path) -> None:
    path = examples.write_events(tmp_path / "0.events", examples.steps())
    events = judge.check(trace(TimelineSources(WINDOW, processes=inputs(path))))
    lanes = judge.lane_names(events)
    group = "rank 0 (n1, gpu[0], pid 4711)"
    assert set(lanes) == {(group, name) for name in ("data", "forward", "copy (GPU)", "step")}
    forward = lanes[group, "forward"]
    assert [event["ts"] for event in forward] == [200_000.0, 1_200_000.0, 2_200_000.0]
    assert {event["dur"] for event in forward} == {700_000.0}
    assert [event["args"] for event in lanes[group, "step"] if event["ph"] == "X"] == [{"value": 32.0}] * 3
    assert judge.counters(events) == {(group, "data"): [(0.006, 0.25)]}


def test_clocks_of_nodes_are_aligned_by_their_offsets(tmp_path: Path) -> None:
    first = examples.write_events(tmp_path / "0.events", examples.steps(1))
    ahead_s = 90_000
    second = examples.write_events(
        tmp_path / "1.events",
        examples.steps(1, clock_s=500 + ahead_s),
        rank=1,
        node="n2",
        unix_offset_ns=examples.header().unix_offset_ns - ahead_s * SECOND,
    )
    lanes = judge.lane_names(judge.check(trace(TimelineSources(WINDOW, processes=inputs(second, first)))))
    times = {group: slices[0]["ts"] for (group, name), slices in lanes.items() if name == "forward"}
    assert len(times) == 2
    assert set(times.values()) == {200_000.0}


def test_nodes_precede_their_processes_and_groups_are_ordered(tmp_path: Path) -> None:
    paths = [
        examples.write_events(tmp_path / f"{rank}.events", examples.steps(1), rank=rank, node=node)
        for rank, node in ((2, "n2"), (10, "n1"), (1, "n1"))
    ]
    sources = TimelineSources(WINDOW, [examples.observation()], [examples.finding()], inputs(*paths))
    events = judge.check(trace(sources))
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    names = {e["pid"]: e["args"]["name"].partition(" (")[0] for e in events if e["name"] == "process_name"}
    assert [names[pid] for pid in sorted(order, key=lambda pid: order[pid])] == [
        "findings",
        "node n1 gpu[0]",
        "rank 1",
        "rank 10",
        "rank 2",
    ]


def test_events_outside_the_window_are_counted_and_events_on_its_edge_are_cut() -> None:
    window = TimeWindow.of_seconds(START_S, START_S + 1, START_S + 2)
    at = 500 * SECOND
    records = [
        (at, SECOND // 2, math.nan, 0, 0, INTERVAL),
        (at + SECOND // 2, SECOND, math.nan, 0, 0, INTERVAL),
        (at + 3 * SECOND // 2, SECOND, math.nan, 0, 0, INTERVAL),
        (at + 2 * SECOND, SECOND, math.nan, 0, 0, INTERVAL),
    ]
    events, tally = events_of(records, window)
    slices = [(event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert slices == [(1_000_000.0, 500_000.0), (1_500_000.0, 500_000.0)]
    assert (tally.shown, tally.outside) == (2, 2)


def test_overlapping_events_of_a_phase_get_lanes_of_their_own() -> None:
    at = 500 * SECOND
    records = [(at + n, 100, math.nan, 0, 0, INTERVAL) for n in range(MAX_OVERLAPPING + 2)]
    events, tally = events_of(records)
    assert tally.shown == MAX_OVERLAPPING
    assert sum(tally.refused.values()) == 2
    assert len({event["tid"] for event in events if event["ph"] == "X"}) == MAX_OVERLAPPING


def test_lanes_of_a_process_are_limited() -> None:
    at = 500 * SECOND
    records = [(at, 1, math.nan, 0, thread, INTERVAL) for thread in range(MAX_PROCESS_LANES + 5)]
    _, tally = events_of(records)
    assert (tally.shown, sum(tally.refused.values())) == (MAX_PROCESS_LANES, 5)


uint64, uint16 = st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1)
near = st.integers(499 * SECOND, 512 * SECOND)
record = st.tuples(
    near | uint64,
    st.integers(0, SECOND) | uint64,
    st.floats(allow_infinity=False),
    uint16,
    uint16,
    st.integers(1, 3),
)


@property_examples.examples(60)
@given(
    st.lists(record, max_size=20), st.integers(-(2**63), 2**63 - 1) | st.just(START_S * SECOND - 500 * SECOND)
)
def test_any_records_become_a_valid_trace(records: list[Any], offset_ns: int) -> None:
    overview = Overview(WINDOW)
    rows = overview.rows_for(["rank 0"])[0]
    parts: list[bytes] = []
    writer = TraceWriter(parts.append, {})
    header = examples.header(unix_offset_ns=offset_ns)
    process = ProcessEvents(header, WINDOW, writer, writer.lanes.add_group("p"), overview, rows)
    process.add([(*item[:5], 1, item[5]) for item in records])
    writer.finish()
    judge.check(judge.parse(b"".join(parts).decode("ascii")))
    tally = process.tally
    assert tally.shown + tally.outside + sum(tally.refused.values()) == len(records)
    for row in overview.rows:
        for values in zip(*overview.shares(row).values(), strict=True):
            assert -1e-9 <= sum(values) <= 1 + 1e-9


@property_examples.examples(150)
@given(st.text(max_size=300))
@example(HOSTILE)
@example("\ud800")
def test_any_text_becomes_an_inert_json_string(text: str) -> None:
    literal = json_text(text)
    assert literal.isascii()
    assert not set("<>&\x7f") & set(literal)
    value = json.loads(literal)
    assert value.isprintable()
    value.encode("utf-8")
    if text.isprintable() and len(text) <= 256:
        assert value == text


@property_examples.examples(100)
@given(
    st.dictionaries(
        st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    )
)
def test_any_arguments_become_a_json_object(args: dict[str, Any]) -> None:
    values = json.loads(json_args(args), parse_constant=pytest.fail)
    assert all(isinstance(value, (str, bool, int, float)) for value in values.values())


def test_hostile_names_stay_inside_their_strings(tmp_path: Path) -> None:
    path = examples.write_events(
        tmp_path / "0.events",
        examples.steps(1),
        names=("</script>", "a\u202eb", 'q"\\', "step"),
        node="<n&1>",
    )
    hostile = examples.finding(HOSTILE, HOSTILE, HOSTILE)
    nodes = [NodeObservation("n1", (examples.series(HOSTILE, [1.0], HOSTILE),))]
    document = trace(TimelineSources(WINDOW, nodes, [hostile], inputs(path)))
    events = judge.check(document)
    assert any("onerror" in event["name"] for event in events)
    text = json.dumps(document, ensure_ascii=False)
    assert not set("\x00\x07\u202e\u200f\ud800") & set(text)


def test_unknown_values_are_marked_and_never_zero() -> None:
    nan = math.nan
    values = [nan, 5.0, 5.0, nan, nan, 7.0]
    points, gaps = counter_points(START_S, 1.0, values, WINDOW)
    assert points == [(1e6, 5.0), (5e6, 7.0), (6e6, 7.0)]
    assert gaps == [(START_S, START_S + 1), (START_S + 3, START_S + 5), (START_S + 6, START_S + 10)]
    node = examples.observation(examples.series("gpu_busy_percent", values, "gpu[0]"))
    events = judge.check(trace(TimelineSources(WINDOW, [node])))
    lanes = judge.lane_names(events)
    assert len(lanes["node n1 gpu[0]", "unknown: gpu_busy_percent"]) == 3
    assert 0 not in [value for _, value in judge.counters(events)["node n1 gpu[0]", "gpu_busy_percent"]]


def test_every_gap_of_a_series_is_marked() -> None:
    values = [1.0, math.nan] * 360
    window = TimeWindow.of_seconds(START_S, START_S, START_S + len(values))
    node = examples.observation(examples.series("gpu_busy_percent", values))
    events = judge.check(trace(TimelineSources(window, [node])))
    gaps = judge.lane_names(events)["node n1", "unknown: gpu_busy_percent"]
    assert [(gap["ts"], gap["dur"]) for gap in gaps] == [((2 * n + 1) * 1e6, 1e6) for n in range(360)]


def test_a_series_may_begin_and_end_within_an_interval_of_the_job() -> None:
    assert counter_points(START_S + 1.4, 1.0, [5.0] * 8, WINDOW)[1] == []
    assert counter_points(START_S + 1.6, 1.0, [5.0] * 8, WINDOW)[1] == [(START_S, START_S + 1.6)]
    assert counter_points(START_S + 0.4, 1.0, [5.0] * 8, WINDOW)[1] == [(START_S + 8.4, START_S + 10)]


def test_signals_that_are_unknown_at_the_same_times_share_a_lane() -> None:
    values = [1.0] * 3 + [math.nan] * 3 + [2.0] * 4
    all_series = [examples.series(f"signal_{number}", values) for number in range(5)]
    events = judge.check(trace(TimelineSources(WINDOW, [examples.observation(*all_series)])))
    (slice_,) = judge.lane_names(events)["node n1", "unknown: 5 signals"]
    assert slice_["args"]["signals"] == ", ".join(f"signal_{number}" for number in range(5))
    assert (slice_["ts"], slice_["dur"]) == (3e6, 3e6)


def test_a_series_without_known_values_has_no_track() -> None:
    node = examples.observation(examples.series("gpu_busy_percent", [math.nan] * 5, "gpu[0]"))
    assert not judge.counters(judge.check(trace(TimelineSources(WINDOW, [node]))))


finite = st.floats(allow_nan=True, allow_infinity=True)


@property_examples.examples(80)
@given(st.floats(START_S - 20, START_S + 20), st.floats(1e-3, 100), st.lists(finite, max_size=30))
def test_points_and_gaps_cover_the_window(start_s: float, interval_s: float, values: list[float]) -> None:
    points, gaps = counter_points(start_s, interval_s, values, WINDOW)
    times = [at_us for at_us, _ in points]
    assert times == sorted(times)
    assert all(math.isfinite(value) and 0 <= at_us <= 1e7 for at_us, value in points)
    assert all(WINDOW.from_s <= first <= last <= WINDOW.to_s for first, last in gaps)
    known = sum(1 for value in values if math.isfinite(value))
    assert bool(points) <= bool(known)
    assert all(one[1] < two[0] for one, two in pairwise(gaps))


def test_findings_are_markers_with_the_time_of_their_evidence() -> None:
    events = judge.check(trace(TimelineSources(WINDOW, findings=[examples.finding()])))
    marker = next(event for event in events if event["ph"] == "i")
    assert (marker["s"], marker["ts"], marker["name"]) == ("g", 1e6, "1. GPU waits for data")
    assert marker["args"]["seconds_lost"] == 120.0
    assert "joules_lost" not in marker["args"]
    evidence = next(event for event in events if event["ph"] == "X")
    assert (evidence["ts"], evidence["dur"], evidence["name"]) == (1e6, 1e6, "80 % of each step")


def test_processes_without_event_file_are_shown_by_their_steps() -> None:
    columns = (array("d", [4.0, 2.0]), array("d", [0.9, 1.0]), array("d", [0.1, 0.5]))
    steps = RankSteps(
        "n1",
        3,
        0,
        99,
        {"step": PhaseStatistics.of([0.3])},
        outliers=(StepOutlier(START_S + 1.0, 0.5, 0.25, "data"),),
        intervals=StepIntervals(float(START_S), 1.0, *columns),
    )
    overview = Overview(WINDOW)
    events = judge.check(trace(TimelineSources(WINDOW, [NodeObservation("n1", (), (steps,))]), overview))
    group = "rank 3 (n1, gpu[0], pid 99)"
    counters = judge.counters(events)
    assert counters[group, "steps"][:2] == [(0.0, 4.0), (1e6, 2.0)]
    assert counters[group, "time in data"][:2] == [(0.0, 10.0), (1e6, 50.0)]
    assert judge.lane_names(events)[group, "long steps"][0]["args"]["expected_s"] == 0.25
    shares = overview.shares(overview.rows[0])
    assert sum(shares["data"]) / COLUMNS == pytest.approx(0.06)
    assert sum(shares["step"]) / COLUMNS == pytest.approx(0.13)


def test_columns_contain_the_time_of_each_phase_once(tmp_path: Path) -> None:
    path = examples.write_events(tmp_path / "0.events", examples.steps(10))
    overview = Overview(WINDOW)
    TimelineBuilder(TimelineSources(WINDOW, processes=inputs(path)), None, overview, lambda *_: None).build()
    of_cpu, of_gpu = map(overview.shares, overview.rows)
    means = {name: sum(values) / COLUMNS for name, values in of_cpu.items()}
    assert means == pytest.approx({"data": 0.2, "forward": 0.7, "step": 0.1}, abs=1e-6)
    assert sum(of_gpu["copy"]) / COLUMNS == pytest.approx(0.1)


@pytest.mark.parametrize("count", [1, MAX_ROWS, MAX_ROWS + 1, 1000])
def test_many_processes_share_rows(count: int) -> None:
    overview = Overview(WINDOW)
    pairs = overview.rows_for([f"rank {number}" for number in range(count)])
    assert len(pairs) == count
    assert len(overview.rows) <= 2 * MAX_ROWS
    assert sum(row.members for row in overview.rows if not row.is_gpu) == count


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    path = examples.write_events(tmp_path / "0.events", examples.steps())
    shown: list[tuple[int, int]] = []
    sources = TimelineSources(WINDOW, processes=inputs(path))
    TimelineBuilder(sources, None, None, lambda *done: shown.append(done)).build()
    assert shown[-1][0] == shown[-1][1] > 0
