"""Checker of Chrome traces for tests, independent of the product.

Its rules are those of the document "Trace Event Format" and of Perfetto's JSON importer. An event is an
error here if the importer drops it or shows it on a wrong lane (row of events).
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

_KNOWN = frozenset("XiCMstf")
_OTHER_KEYS = {"X": {"dur", "args"}, "i": {"s", "args"}, "C": {"args"}, "M": {"args"}}
_COMMON_KEYS = {"ph", "ts", "pid", "tid", "name"}
_FLOW_KEYS = {"id", "cat", "bp"}


def load(path: Path) -> dict[str, Any]:
    """Read a trace from a file and refuse anything that is not strict JSON.

    NaN, duplicate keys in an event, and characters outside of ASCII are refused.
    """
    data = path.read_bytes()
    text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("ascii")
    return parse(text)


def parse(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        text, parse_constant=_refuse, object_pairs_hook=_without_duplicates, parse_float=_finite
    )
    return document


def check(document: dict[str, Any], *, nested: bool = True) -> list[dict[str, Any]]:
    """Check that a Chrome trace is valid, and return its events.

    Args:
        document: the trace.
        nested: whether slices of one lane must not overlap, except if one contains the other.
    """
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, (str, int, float)) for value in document["otherData"].values())
    events: list[dict[str, Any]] = document["traceEvents"]
    for event in events:
        _check_event(event)
    _check_lanes(events)
    if nested:
        _check_nesting(events)
    return events


def lane_names(events: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the events of a Chrome trace, grouped by the names of their process and their thread.

    The timeline uses a process of the trace for a group, and a thread for a lane (row of events). Only
    slices (events with a duration) and instants are returned.
    """
    groups, lanes = _names(events, "process_name", "pid"), _names(events, "thread_name", "tid")
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "Xi":
            found[groups[event["pid"]], lanes[event["tid"]]].append(event)
    return dict(found)


def counters(events: list[dict[str, Any]]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return the samples of each counter in the events of a Chrome trace.

    The keys are pairs of the group and the name of the counter. A sample is a pair of the time in
    microseconds and the value.
    """
    groups = _names(events, "process_name", "pid")
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            (value,) = event["args"].values()
            found[groups[event["pid"]], event["name"]].append((event["ts"], value))
    return dict(found)


def _check_event(event: dict[str, Any]) -> None:
    keys, phase = list(event), event["ph"]
    assert phase in _KNOWN, event
    allowed = _COMMON_KEYS | (_OTHER_KEYS.get(phase) or _FLOW_KEYS)
    assert set(keys) <= allowed, event
    assert set(keys) >= _COMMON_KEYS, event
    # Old releases search for ts and ph key by key, and cannot read the escapes of texts on the way.
    assert keys[:2] == ["ph", "ts"], event
    assert isinstance(event["name"], str)
    assert event["name"].isprintable(), event
    for key in ("ts", "dur"):
        value = event.get(key, 0)
        assert isinstance(value, (int, float)), event
        assert 0 <= value < 1e15, event
    for key in ("pid", "tid"):
        assert type(event[key]) is int, event
        assert 0 < event[key] < 1 << 31, event
    if phase == "X":
        assert "dur" in event
    elif phase == "i":
        assert event["s"] in ("g", "p", "t")
    elif phase == "C":
        assert event["args"]
        assert all(type(value) in (int, float) for value in event["args"].values()), event
    elif phase in "stf":
        assert type(event["id"]) is int, event


def _check_lanes(events: list[dict[str, Any]]) -> None:
    groups, lanes = _names(events, "process_name", "pid"), _names(events, "thread_name", "tid")
    owner: dict[int, int] = {}
    for event in events:
        assert event["pid"] in groups, event
        if event["ph"] in "Xistf":
            assert event["tid"] in lanes, event
            assert event["tid"] not in groups, "a thread with the number of a process is its main thread"
        # Perfetto names threads by their number alone.
        assert owner.setdefault(event["tid"], event["pid"]) == event["pid"], event


def _check_nesting(events: list[dict[str, Any]]) -> None:
    by_lane: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_lane[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in by_lane.values():
        open_ends: list[float] = []
        for start, end in sorted(slices, key=lambda item: (item[0], -item[1])):
            while open_ends and open_ends[-1] <= start + 0.002:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.002, (start, end, open_ends)
            open_ends.append(end)


def _names(events: list[dict[str, Any]], kind: str, key: str) -> dict[int, str]:
    names: dict[int, str] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == kind:
            assert event[key] not in names, event
            names[event[key]] = event["args"]["name"]
    return names


def _refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    assert math.isfinite(value)
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    assert len(set(keys)) == len(keys), keys
    return dict(pairs)
