"""Signals and power of nodes and GPUs as counter tracks of a Chrome trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.signals import SIGNALS, ObservedSeries
from slurm_energy.diagnosis.steps import RankSteps
from slurm_energy.diagnosis.timeline.trace_writer import TraceWriter
from slurm_energy.diagnosis.timeline.window import TimeWindow

_UNKNOWN_LANE: Final = "unknown"
MAX_GAPS: Final = 64
"""Maximum number of intervals without value that are marked per series."""

Gap = tuple[float, float]


def write_node(writer: TraceWriter, window: TimeWindow, node: NodeObservation) -> int:
    """Write the signals of a node and of its GPUs. Return the number of tracks.

    A counter of a Chrome trace keeps its value until the next one. Intervals of unknown values are therefore
    marked on a lane of their own.
    """
    groups: dict[str, list[ObservedSeries]] = {"": []}
    for series in node.series:
        part = series.part if series.part.startswith("gpu[") else ""
        groups.setdefault(part, []).append(series)
    tracks = 0
    for part in sorted(groups):
        if groups[part]:
            group = writer.lanes.add_group(f"node {node.node}" + (f" {part}" if part else ""))
            tracks += sum(_write_series(writer, window, group, series) for series in groups[part])
    return tracks


def write_steps(writer: TraceWriter, window: TimeWindow, group: int, steps: RankSteps) -> bool:
    """Write the steps over time of a process that wrote no event file. Return whether there are any."""
    intervals = steps.intervals
    if intervals is None or not len(intervals.steps):
        return False
    axis = (intervals.start_s, intervals.interval_s)
    rates = [count / intervals.interval_s for count in intervals.steps]
    _write_counter(writer, window, group, "steps", "1/s", axis, rates)
    for name, column in (("time in step", intervals.step_seconds), ("time in data", intervals.data_seconds)):
        percents = [100 * seconds / intervals.interval_s for seconds in column]
        _write_counter(writer, window, group, name, "%", axis, percents)
    lane = writer.lanes.add_lane(group, "long steps")
    for outlier in steps.outliers:
        clipped = window.clip_s(outlier.at_s, outlier.at_s + outlier.duration_s)
        if clipped and lane is not None:
            args = {
                "duration_s": outlier.duration_s,
                "expected_s": outlier.expected_s,
                "phase": outlier.phase,
            }
            writer.instant((group, lane), "long step", window.microseconds(clipped[0]), "t", args)
    return True


def counter_points(
    series_start_s: float, interval_s: float, values: Iterable[float], window: TimeWindow
) -> tuple[list[tuple[float, float]], list[Gap]]:
    """Return the points of a counter track and the intervals without value, both within the window.

    Args:
        series_start_s: start of the first interval, Unix seconds.
        interval_s: seconds per interval.
        values: mean per interval; NaN: unknown.
        window: the shown part of the time.

    Returns:
        Microsecond of the timeline and value at each change; start and end of each gap in Unix seconds.
    """
    points: list[tuple[float, float]] = []
    gaps: list[Gap] = []
    last = math.nan
    end_s = window.from_s
    for index, value in enumerate(values):
        start_s = series_start_s + index * interval_s
        clipped = window.clip_s(start_s, start_s + interval_s)
        if clipped is None or clipped[0] == clipped[1]:
            continue
        if clipped[0] > end_s:
            gaps.append((end_s, clipped[0]))
        end_s = clipped[1]
        if not math.isfinite(value):
            gaps.append(clipped)
        elif value != last or (gaps and gaps[-1][1] == clipped[0]):
            points.append((window.microseconds(clipped[0]), value))
            last = value
    if end_s < window.to_s:
        gaps.append((end_s, window.to_s))
    if points:
        points.append((window.microseconds(end_s), points[-1][1]))
    return points, list(_joined(gaps))


def _joined(gaps: Iterable[Gap]) -> Iterator[Gap]:
    """Yield gaps, neighbours joined."""
    last: Gap | None = None
    for gap in gaps:
        if last is not None and gap[0] <= last[1]:
            last = (last[0], gap[1])
            continue
        if last is not None:
            yield last
        last = gap
    if last is not None:
        yield last


def _write_series(writer: TraceWriter, window: TimeWindow, group: int, series: ObservedSeries) -> bool:
    signal = SIGNALS.get(series.name)
    part = "" if series.part.startswith("gpu[") or not series.part else f" {series.part}"
    axis = (series.start_s, series.interval_s)
    unit = signal.unit if signal else "value"
    return _write_counter(writer, window, group, series.name + part, unit, axis, series.values)


def _write_counter(
    writer: TraceWriter,
    window: TimeWindow,
    group: int,
    name: str,
    unit: str,
    axis: tuple[float, float],
    values: Iterable[float],
) -> bool:
    """Write a counter track; return False, and write nothing, if no value is known."""
    points, gaps = counter_points(*axis, values, window)
    if not points:
        return False
    writer.counter(group, name, unit, points)
    if gaps:
        lane = writer.lanes.add_lane(group, f"{_UNKNOWN_LANE}: {name}", 1 << 20)
        for start_s, end_s in gaps[:MAX_GAPS] if lane is not None else ():
            start_us = window.microseconds(start_s)
            duration_us = window.microseconds(end_s) - start_us
            writer.slice((group, lane or 0), _UNKNOWN_LANE, start_us, duration_us, {})
    return True
