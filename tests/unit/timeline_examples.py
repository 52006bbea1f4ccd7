"""Example inputs for tests of timelines: event files, profiler traces and observations."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_energy.diagnosis.event_format import (
    COUNTER,
    GPU_THREAD,
    INTERVAL,
    MARK,
    EventFileHeader,
    encode_header,
    encode_records,
)
from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.signals import ObservedSeries

START_S = 1_795_000_000
START_NS = START_S * 10**9
SECOND = 10**9
PHASES = ("data", "forward", "copy", "step")
Record = tuple[int, int, float, int, int, int]


def header(**changes: Any) -> EventFileHeader:
    """Return an example header of an event file. The process's clock showed 500 s at `START_S`."""
    values: dict[str, Any] = {
        "node": "n1",
        "pid": 4711,
        "unix_offset_ns": START_NS - 500 * SECOND,
        "job_id": 12,
        "rank": 0,
        "gpu": "gpu[0]",
        "names": PHASES,
        "capacity": 4096,
    }
    return EventFileHeader(**{**values, **changes})


def steps(count: int = 3, clock_s: float = 500.0) -> list[Record]:
    """Return records of steps of 1 s: 0.2 s data, 0.7 s forward, with 0.1 s of copying on the GPU."""
    records: list[Record] = []
    for number in range(count):
        at = int((clock_s + number) * SECOND)
        records += [
            (at, 2 * SECOND // 10, math.nan, 0, 0, INTERVAL),
            (at + 3 * SECOND // 10, SECOND // 10, math.nan, 2, GPU_THREAD, INTERVAL),
            (at + 2 * SECOND // 10, 7 * SECOND // 10, math.nan, 1, 0, INTERVAL),
            (at, SECOND - 1, 32.0, 3, 0, INTERVAL),
        ]
    records.append((int(clock_s * SECOND) + 5, 0, math.nan, 3, 0, MARK))
    records.append((int(clock_s * SECOND) + 6, 0, 0.25, 0, 0, COUNTER))
    return records


def write_events(path: Path, records: Sequence[Record], **changes: Any) -> Path:
    """Write an event file."""
    facts = header(written=len(records), **changes)
    path.write_bytes(encode_header(facts) + encode_records(records, 0, facts.capacity))
    return path


def profile(**changes: Any) -> dict[str, Any]:
    """Return an example trace in the format of the PyTorch profiler."""
    base_us = START_S * 1e6
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 77,
            "tid": 77,
            "ts": base_us + 1e6,
            "dur": 500,
        },
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": base_us + 1e6 + 9, "dur": 400},
        {"ph": "s", "id": 5, "pid": 77, "tid": 77, "ts": base_us + 1e6, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": base_us + 1e6 + 9, "cat": "ac2g", "name": "ac2g"},
        {"ph": "B", "name": "outer", "pid": 77, "tid": 78, "ts": base_us + 2e6},
        {"ph": "E", "name": "outer", "pid": 77, "tid": 78, "ts": base_us + 2e6 + 100},
        {"ph": "C", "name": "memory", "pid": 77, "tid": 77, "ts": base_us + 1e6, "args": {"bytes": 5}},
        {"ph": "i", "name": "mark", "pid": 77, "tid": 77, "ts": base_us + 1e6 + 3, "s": "g"},
    ]
    return {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": events, **changes}


def write_profile(path: Path, document: Any) -> Path:
    """Write a trace as JSON."""
    path.write_text(json.dumps(document))
    return path


def series(name: str, values: Sequence[float], part: str = "", node: str = "n1") -> ObservedSeries:
    """Return an observed series with the given values in intervals of 1 s, starting at `START_S`."""
    return ObservedSeries(name, part, node, "test", float(START_S), 1.0, array("d", values))


def observation(*all_series: ObservedSeries) -> NodeObservation:
    """Return an example observation (recorded signals) of node n1."""
    return NodeObservation("n1", all_series or (series("power_watts", [100.0, 200.0, 200.0], "gpu[0]"),))


def finding(
    title: str = "GPU waits for data", text: str = "80 % of each step", where: str = "n1"
) -> JobFinding:
    """Return an example finding with two facts: one has a time, the other has none."""
    facts = (
        FindingEvidence("data", where, START_S + 1.0, START_S + 2.0, 0.8, 0.2, text),
        FindingEvidence("cpus", "", None, None, 4.0, None, "4 CPUs"),
    )
    return JobFinding(FindingKind.DATA_STALL, title, facts, 0.8, 120.0, None, 0.9, (where,))


def write_event_folder(folder: Path) -> Path:
    """Create a folder with the event files of two ranks and a profiler trace. Return the folder."""
    folder.mkdir()
    write_events(folder / "0.events", steps())
    write_events(folder / "1.events", steps(), rank=1, pid=4712, gpu="gpu[1]")
    write_profile(folder / "trace.json", profile())
    return folder
