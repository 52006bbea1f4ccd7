from __future__ import annotations

import base64
import math
import os
import subprocess
import sys
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.reports.plots.axis import nice_step, time_label, time_ticks, value_ticks
from slurm_energy.reports.plots.text_plot import ASCII, BLOCKS, area_plot, glyphs_for, share_bar, sparkline
from slurm_energy.reports.trace import PowerTrace, combine, decode_trace, encode_trace, smoothed

WATTS = st.floats(0, 1e5, width=32)


def joules(trace: PowerTrace) -> float:
    return math.fsum(w for w in trace.total() if not math.isnan(w)) * trace.interval_s


@given(
    st.lists(st.tuples(WATTS, WATTS | st.just(math.nan)), max_size=50),
    st.sampled_from([0.02, 0.5, 1.0, 60.0]),
)
def test_reads_back_what_is_encoded(rows: list[tuple[float, float]], interval_s: float) -> None:
    columns = {"cpu": [row[0] for row in rows], "gpu[0]": [row[1] for row in rows]}
    trace = decode_trace(encode_trace(100.0, interval_s, columns))
    assert (trace.start, trace.interval_s, trace.length) == (100.0, interval_s, len(rows))
    assert list(trace.watts["cpu"]) == columns["cpu"]
    assert [math.isnan(w) for w in trace.watts["gpu[0]"]] == [math.isnan(w) for w in columns["gpu[0]"]]


def _column(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw)).decode()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"start": 0, "interval_s": 1},
        {"start": 0, "interval_s": 0, "columns": {}},
        {"start": "x", "interval_s": 1, "columns": {}},
        {"start": 0, "interval_s": 1, "columns": ["cpu"]},
        {"start": 0, "interval_s": 1, "columns": {"cpu": "%%%"}},
        {"start": 0, "interval_s": 1, "columns": {"cpu": base64.b64encode(b"junk").decode()}},
        {"start": 0, "interval_s": 1, "columns": {"cpu": _column(b"abc")}},
        {"start": 0, "interval_s": 1, "columns": {"cpu": _column(b"abcd"), "dram": _column(b"")}},
        {"start": math.nan, "interval_s": 1, "columns": {}},
        {"start": 10**400, "interval_s": 1, "columns": {}},
    ],
)
def test_a_broken_trace_is_a_usage_error(data: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="power trace"):
        decode_trace(data)


@pytest.mark.slow
def test_a_column_that_would_unpack_to_gigabytes_is_refused() -> None:
    bomb = _column(bytes(90_000_000))
    with pytest.raises(UsageError, match="bad column length"):
        decode_trace({"start": 0, "interval_s": 1, "columns": {"cpu": bomb}})


@given(
    st.lists(st.lists(WATTS, min_size=1, max_size=40), min_size=1, max_size=4),
    st.lists(st.integers(0, 30), min_size=4, max_size=4),
    st.integers(1, 60),
)
def test_adding_up_nodes_keeps_the_energy(columns: list[list[float]], delays: list[int], points: int) -> None:
    """Adding up the power traces of several nodes keeps their energy.

    The energy of a single node is also kept when its trace is reduced to fewer points.
    """
    traces = [
        decode_trace(encode_trace(1000.0 + delay, 1.0, {"cpu": column}))
        for column, delay in zip(columns, delays, strict=False)
    ]
    whole = combine(traces, 10_000)
    assert joules(whole) == pytest.approx(sum(joules(trace) for trace in traces), rel=1e-6, abs=1e-3)
    alone = combine(traces[:1], points)
    assert alone.length <= points
    assert joules(alone) == pytest.approx(joules(traces[0]), rel=1e-6, abs=1e-3)


def test_gpus_join_and_unknown_intervals_stay_unknown() -> None:
    columns = {"gpu[0]": [100.0, math.nan], "gpu[1]": [50.0, math.nan], "cpu": [10.0, 20.0]}
    trace = combine([decode_trace(encode_trace(0.0, 1.0, columns))], 10)
    assert list(trace.watts) == ["cpu", "gpu"]
    assert trace.watts["gpu"][0] == 150.0
    assert math.isnan(trace.watts["gpu"][1])
    assert list(trace.total()) == [160.0, 20.0]


def test_the_node_meter_is_the_total_where_it_is_known() -> None:
    trace = decode_trace(encode_trace(0.0, 1.0, {"cpu": [10.0, 20.0], "node": [300.0, math.nan]}))
    assert list(trace.total()) == [300.0, 20.0]


@given(st.floats(1e-3, 1e9), st.integers(1, 12))
def test_ticks_are_round_and_reach_the_top(top: float, count: int) -> None:
    ticks = value_ticks(top, count)
    assert ticks[0] == 0
    assert ticks[-1] >= top * (1 - 1e-9)
    assert len(ticks) <= count + 2
    assert f"{nice_step(top, count):e}"[0] in "125"


@given(st.floats(0.01, 1e8))
def test_time_ticks_stay_inside(duration_s: float) -> None:
    ticks = time_ticks(duration_s, 6)
    assert ticks[0] == 0
    assert ticks[-1] <= duration_s * (1 + 1e-6)
    assert len(ticks) <= 8


@pytest.mark.parametrize(
    ("seconds", "longest", "expected"),
    [(15, 100, "15 s"), (150, 600, "2:30 min"), (5400, 9000, "1:30 h"), (3 * 86400, 9 * 86400, "3 d")],
)
def test_time_labels_suit_the_axis(seconds: float, longest: float, expected: str) -> None:
    assert time_label(seconds, longest) == expected


def test_area_plot_in_blocks_and_in_ascii() -> None:
    watts = [0.0, 50.0, 100.0, math.nan, 25.0, 100.0]
    assert area_plot(watts, 6.0, BLOCKS, 4, (75.0, "cap")) == [
        "100 W ┤  █  █",
        "      ┤╌╌█╌╌█ cap",
        " 50 W ┤ ██  █",
        "      ┤ ██ ██",
        "  0 W ┼──────",
        "       0 s  5 s",
    ]
    plain = "\n".join(area_plot(watts, 6.0, ASCII, 2, (100.0, "cap")))
    assert plain.isascii()


@pytest.mark.parametrize("watts", [[], [math.nan] * 3, [0.0] * 3])
def test_area_plot_of_nothing(watts: list[float]) -> None:
    assert area_plot(watts, 0.0, BLOCKS)


def test_sparkline_and_bar() -> None:
    assert sparkline([0.0, 50.0, 100.0, math.nan], 100.0, BLOCKS) == "▁▄█ "
    assert share_bar(0.5, 8, BLOCKS) == "████░░░░"
    assert share_bar(1e-9, 4, ASCII) == "#..."
    assert share_bar(None, 4, ASCII) == "...."


@pytest.mark.parametrize(
    ("encoding", "glyphs"), [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII)]
)
def test_glyphs_follow_the_terminal(encoding: str | None, glyphs: object) -> None:
    assert glyphs_for(encoding) is glyphs


@pytest.mark.parametrize(
    ("locale", "is_ascii"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LANG": "C"}, True),
        ({"LANG": "POSIX", "LC_ALL": ""}, True),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "C.UTF-8"}, False),
        ({}, False),
    ],
)
def test_glyphs_follow_a_locale_without_utf_8(locale: dict[str, str], is_ascii: bool) -> None:
    """In the locale C, Python writes UTF-8 although the terminal may not show it."""
    code = (
        "from slurm_energy.cli.output import output_glyphs\n"
        "print(output_glyphs(ascii_only=False).bar_full.isascii())"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")} | locale
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{is_ascii}\n"


def test_delayed_node_meter_readings_are_smoothed_for_plots():
    """A plotted power trace shows no false peaks if the node meter reports a change later.

    The processors step from 100 to 300 W, and the meter follows a second later. `other` (meter minus
    components) then swings, and is smoothed for the plot.
    """
    cpu = [100.0, 300.0, *[300.0] * 18]
    other = [50.0, 0.0, 100.0, *[50.0] * 17]
    trace = combine([decode_trace(encode_trace(0.0, 1.0, {"cpu": cpu, "other": other}))], 100)
    assert list(trace.watts["cpu"]) == cpu
    assert list(trace.watts["other"]) == pytest.approx([50.0] * 20, abs=5.1)
    assert max(trace.total()) < 356


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50), st.floats(0.1, 80))
def test_smoothing_keeps_range_and_constant_values(values, width):
    found = smoothed(values, width)
    assert len(found) == len(values)
    assert min(values) - 1e-6 <= min(found) and max(found) <= max(values) + 1e-6
    assert list(smoothed([7.0] * len(values), width)) == pytest.approx([7.0] * len(values))
    with_gap = smoothed([*values, math.nan], width)
    assert math.isnan(with_gap[-1]) and not any(map(math.isnan, with_gap[:-1]))
