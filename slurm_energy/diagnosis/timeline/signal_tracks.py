"""Writer of the signals of nodes and GPUs into a Chrome trace.

The signals include the power. Each signal becomes a counter track (a curve over time) of the trace.
"""

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
_EDGE: Final = 1.5
Gap = tuple[float, float]


def write_node(writer: TraceWriter, window: TimeWindow, node: NodeObservation) -> int:
    """Write the signals of a node and of its GPUs to a Chrome trace. Return the number of tracks.

    A counter of a Chrome trace keeps its value until the next value. Intervals with unknown values are
    therefore marked on a separate row (lane) of the trace.
    """
    groups: dict[str, list[ObservedSeries]] = {"": []}
    for series in node.series:
        part = series.part if series.part.startswith("gpu[") else ""
        groups.setdefault(part, []).append(series)
    tracks = 0
    for part in sorted(groups):
        if groups[part]:
            group = writer.lanes.add_group(f"node {node.node}" + (f" {part}" if part else ""))
            counters = _CounterGroup(writer, window, group)
            for series in groups[part]:
                _add_series(counters, series)
            counters.finish()
            tracks += counters.tracks
    return tracks


def write_steps(writer: TraceWriter, window: TimeWindow, group: int, steps: RankSteps) -> bool:
    """Write counter tracks of a process's steps over time to a Chrome trace.

    The function serves processes that have no event file. Return whether there are any steps.
    """
    intervals = steps.intervals
    if intervals is None or not len(intervals.steps):
        return False
    counters = _CounterGroup(writer, window, group)
    axis = (intervals.start_s, intervals.interval_s)
    rates = [count / intervals.interval_s for count in intervals.steps]
    counters.add("steps", "1/s", axis, rates)
    for name, column in (("time in step", intervals.step_seconds), ("time in data", intervals.data_seconds)):
        percents = [100 * seconds / intervals.interval_s for seconds in column]
        counters.add(name, "%", axis, percents)
    counters.finish()
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
    """Return the points of a signal's curve in the timeline, and the gaps without value.

    Points and gaps lie within the time window. The samples of a series do not begin and end exactly with
    the job. Therefore a short time without value at the beginning or the end of the window is no gap.
    Short means at most 1.5 intervals.

    Args:
        series_start_s: start of the first interval, Unix seconds.
        interval_s: seconds per interval.
        values: mean per interval; NaN means unknown.
        window: part of the job's time that the timeline shows.

    Returns:
        At each change, the time in microseconds of the timeline and the new value. For each gap, start
        and end in Unix seconds.
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
        if clipped[0] > end_s and (end_s > window.from_s or clipped[0] - end_s > _EDGE * interval_s):
            gaps.append((end_s, clipped[0]))
        end_s = clipped[1]
        if not math.isfinite(value):
            gaps.append(clipped)
        elif value != last or (gaps and gaps[-1][1] == clipped[0]):
            points.append((window.microseconds(clipped[0]), value))
            last = value
    if window.to_s - end_s > _EDGE * interval_s:
        gaps.append((end_s, window.to_s))
    if points:
        points.append((window.microseconds(end_s), points[-1][1]))
    return points, list(_joined(gaps))


def _joined(gaps: Iterable[Gap]) -> Iterator[Gap]:
    """Yield gaps in time, with overlapping or adjacent gaps joined into one gap."""
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


class _CounterGroup:
    """Writer of the signals of one node, GPU or process in a Chrome trace, as counter tracks.

    The writer also marks the intervals in which a signal has no value.

    Args:
        writer: Chrome trace.
        window: part of the job's time that the timeline shows.
        group: process number under which a viewer shows these tracks.
    """

    def __init__(self, writer: TraceWriter, window: TimeWindow, group: int) -> None:
        self._writer, self._window, self._group = writer, window, group
        self._names_by_gaps: dict[tuple[Gap, ...], list[str]] = {}
        self.tracks = 0

    def add(self, name: str, unit: str, axis: tuple[float, float], values: Iterable[float]) -> None:
        """Write a counter track, if any value is known.

        Args:
            name: name of the track.
            unit: unit of the values.
            axis: start of the first interval in Unix seconds, and seconds per interval.
            values: mean per interval; NaN means unknown.
        """
        points, gaps = counter_points(*axis, values, self._window)
        if points:
            self.tracks += 1
            self._writer.counter(self._group, name, unit, points)
            if gaps:
                self._names_by_gaps.setdefault(tuple(gaps), []).append(name)

    def finish(self) -> None:
        """Write the lanes (rows of bars) that mark the intervals in which signals have no value.

        Signals with identical intervals share a lane.
        """
        window = self._window
        for gaps, names in self._names_by_gaps.items():
            what = names[0] if len(names) == 1 else f"{len(names)} signals"
            lane = self._writer.lanes.add_lane(self._group, f"{_UNKNOWN_LANE}: {what}", 1 << 20)
            for start_s, end_s in gaps if lane is not None else ():
                start_us = window.microseconds(start_s)
                duration_us = window.microseconds(end_s) - start_us
                args = {"signals": ", ".join(names)}
                self._writer.slice((self._group, lane or 0), _UNKNOWN_LANE, start_us, duration_us, args)


def _add_series(counters: _CounterGroup, series: ObservedSeries) -> None:
    signal = SIGNALS.get(series.name)
    part = "" if series.part.startswith("gpu[") or not series.part else f" {series.part}"
    unit = signal.unit if signal else "value"
    counters.add(series.name + part, unit, (series.start_s, series.interval_s), series.values)
