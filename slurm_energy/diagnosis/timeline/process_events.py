"""Conversion of the event file of one process to a timeline.

The events become rows (lanes) of a Chrome trace and one row of the overview page.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from slurm_energy.diagnosis.event_format import COUNTER, GPU_THREAD, INTERVAL, EventFileHeader, RawEvent
from slurm_energy.diagnosis.steps import STANDARD_PHASES
from slurm_energy.diagnosis.timeline.overview import Overview, OverviewRow
from slurm_energy.diagnosis.timeline.trace_text import json_text
from slurm_energy.diagnosis.timeline.trace_writer import TraceWriter, lane_keys
from slurm_energy.diagnosis.timeline.window import EventTally, TimeWindow

MAX_PROCESS_LANES: Final = 512
MAX_OVERLAPPING: Final = 8
"""Maximum number of lanes per phase and thread. Events that overlap must not share a lane."""
_TOO_MANY_LANES = f"more than {MAX_PROCESS_LANES} phases and threads"
_TOO_MANY_OVERLAP = f"more than {MAX_OVERLAPPING} overlapping events of a phase"


class _Lane:
    """One row of events (lane) of the timeline, for one phase of one thread.

    Attributes:
        end_ns: end of the last event in the lane.
        lane: process and thread number in the trace.
        suffix: text that all encoded events of the lane have in common.
        column: nanoseconds by column of the overview, to which events of the lane are added; None means no
            overview.
        below: lane for events that overlap events of this lane; None means that no lane for these events
            exists yet.
    """

    __slots__ = ("below", "column", "end_ns", "lane", "suffix")

    def __init__(self, lane: tuple[int, int], name: str, column: array[float] | None) -> None:
        self.end_ns = 0
        self.lane = lane
        self.suffix = f'{lane_keys(lane)},"name":{json_text(name)}'
        self.column = column
        self.below: _Lane | None = None


_Placed = tuple[_Lane, int, int, float]
"""Lane, start and end in Unix ns, and value of an event."""


class ProcessEvents:
    """Converter of the events of one process into a Chrome trace and into the overview of a timeline.

    Args:
        header: header of the event file.
        window: part of the job's time that the timeline shows.
        writer: writer of the Chrome trace; None means that no trace is written.
        group: process number under which the Chrome trace shows the events.
        overview: overview for the page of the timeline; None means that no page is created.
        rows: two rows of the overview: one for events that the CPU has timed, and one for events that the
            GPU has timed.
    """

    def __init__(
        self,
        header: EventFileHeader,
        window: TimeWindow,
        writer: TraceWriter | None,
        group: int,
        overview: Overview | None,
        rows: tuple[OverviewRow, OverviewRow] | None,
    ) -> None:
        self._header, self._window = header, window
        self._writer, self._group = writer, group
        self._overview, self._rows = overview, rows
        self._lanes: dict[int, _Lane | None] = {}
        self.tally = EventTally()

    def add(self, events: Sequence[RawEvent]) -> None:
        """Add a block of events of the process to the timeline.

        Events of one phase and thread must be in the order of their ends.
        """
        placed = self._place(events)
        self.tally.shown += len(placed)
        if self._writer:
            self._write(self._writer, placed)
        if self._overview:
            self._draw(self._overview, placed)

    def _place(self, batch: Sequence[RawEvent]) -> list[_Placed]:
        """Return those events that lie in the time window, each with its lane (row of bars) in the trace.

        Events are cut at the ends of the window. Marks and counters are written directly and are not
        returned.
        """
        offset_ns, from_ns, to_ns = self._header.unix_offset_ns, self._window.from_ns, self._window.to_ns
        lanes = self._lanes
        placed: list[_Placed] = []
        for start, duration, value, phase, thread, _, kind in batch:
            start += offset_ns
            end = start + duration
            if start < from_ns or end > to_ns:
                if start >= to_ns or end < from_ns:
                    self.tally.outside += 1
                    continue
                start, end = max(start, from_ns), min(end, to_ns)
            key = phase << 16 | thread
            lane = lanes[key] if key in lanes else self._first_lane(key)
            if lane is None:
                self.tally.refuse(_TOO_MANY_LANES)
            elif kind != INTERVAL:
                self._point(lane, start, value, kind, self._header.name_of(phase))
            else:
                if start < lane.end_ns:
                    lane = self._free_lane(lane, start, key)
                    if lane is None:
                        self.tally.refuse(_TOO_MANY_OVERLAP)
                        continue
                lane.end_ns = end
                placed.append((lane, start, end, value))
        return placed

    def _write(self, writer: TraceWriter, placed: list[_Placed]) -> None:
        origin_ns = self._window.origin_ns
        plain = '{"ph":"X","ts":%.3f,"dur":%.3f,%s}'
        valued = '{"ph":"X","ts":%.3f,"dur":%.3f,%s,"args":{"value":%r}}'
        writer.add_lines(
            [
                plain % ((start - origin_ns) / 1000, (end - start) / 1000, lane.suffix)
                if value != value  # NaN
                else valued % ((start - origin_ns) / 1000, (end - start) / 1000, lane.suffix, value)
                for lane, start, end, value in placed
            ]
        )

    def _draw(self, overview: Overview, placed: list[_Placed]) -> None:
        first_ns, column_ns = overview.window.from_ns, overview.column_ns
        for lane, start, end, _ in placed:
            column = lane.column
            if column is not None:
                index = (start - first_ns) // column_ns
                if end <= first_ns + (index + 1) * column_ns:
                    column[index] += end - start
                else:
                    overview.add(column, start, end)

    def _point(self, lane: _Lane, at_ns: int, value: float, kind: int, name: str) -> None:
        """Write one event without duration to the timeline: a mark, or a value of a counter."""
        self.tally.shown += 1
        if self._writer is None:
            return
        at_us = (at_ns - self._window.origin_ns) / 1000
        if kind == COUNTER and value == value:
            self._writer.counter(self._group, name, "value", [(at_us, value)])
        elif kind != COUNTER:
            self._writer.instant(lane.lane, name, at_us, "t", {"value": value})

    def _first_lane(self, key: int) -> _Lane | None:
        full = len(self._lanes) >= MAX_PROCESS_LANES
        lane = None if full else self._new_lane(key, 1)
        if not full:
            self._lanes[key] = lane
        return lane

    def _free_lane(self, lane: _Lane, start_ns: int, key: int) -> _Lane | None:
        """Return a lane (row of bars in the trace) that is free at the start time of an event.

        The lane belongs to the phase and thread of the event. Return None if the trace has too many lanes.
        """
        depth = 1
        while start_ns < lane.end_ns:
            depth += 1
            if depth > MAX_OVERLAPPING:
                return None
            if lane.below is None:
                lane.below = self._new_lane(key, depth)
            if lane.below is None:
                return None
            lane = lane.below
        return lane

    def _new_lane(self, key: int, depth: int) -> _Lane | None:
        phase, thread = key >> 16, key & 0xFFFF
        name = self._header.name_of(phase)
        column = None
        if self._rows:
            column = self._rows[thread == GPU_THREAD].column(name)
        if self._writer is None:
            return _Lane((0, 0), name, column)
        title = name + _thread_text(thread) + (f", overlap {depth}" if depth > 1 else "")
        order = thread * 1024 + (
            STANDARD_PHASES.index(name)
            if name in STANDARD_PHASES
            else min(len(STANDARD_PHASES) + phase, 1000)
        )
        number = self._writer.lanes.add_lane(self._group, title, order)
        return None if number is None else _Lane((self._group, number), name, column)


def _thread_text(thread: int) -> str:
    """Return the thread's part of a lane name; empty for the first thread of the process."""
    if thread == GPU_THREAD:
        return " (GPU)"
    return f" (thread {thread})" if thread else ""
