"""Import of the events of a Chrome trace into the timeline of a job.

The events become lanes (rows of events) of the written trace, and one row of the overview.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from slurm_energy.diagnosis.timeline.chrome_import import finite_number, is_gpu_event
from slurm_energy.diagnosis.timeline.chrome_scanner import ScannedEvent, ScannedValue
from slurm_energy.diagnosis.timeline.overview import OTHER, Overview, OverviewRow
from slurm_energy.diagnosis.timeline.trace_text import MAX_ARGS, MAX_TEXT
from slurm_energy.diagnosis.timeline.trace_writer import TraceWriter
from slurm_energy.diagnosis.timeline.window import EventTally, TimeWindow

MAX_PROFILE_LANES: Final = 2048
MAX_OPEN: Final = 4096
"""Maximum number of open events of a trace, which have begun but not ended."""
_MAX_US: Final = 1e18
_FLOW_IDS: Final = 1 << 32

_NOT_AN_OBJECT = "not an object"
_NO_PHASE = "no valid 'ph'"
_NO_TIME = "no valid 'ts'"
_NO_DURATION = "no valid 'dur'"
_NO_VALUE = "a counter without numbers"
_NO_BEGIN = "an end without a beginning"
_TOO_MANY_LANES = f"more than {MAX_PROFILE_LANES} lanes"
_TOO_MANY_OPEN = f"more than {MAX_OPEN} events that have begun and not ended"
_NO_FLOW_ID = "an arrow without a valid 'id'"
_NOT_SHOWN = "kinds of events that are not imported"

_Key = tuple[str, str]
_Open = tuple[float, str, dict[str, Any]]
"""Start, name and arguments of an event."""


class ProfileEvents:
    """Converter of the events of one imported trace.

    Args:
        name: short name of the trace, shown before the names of its processes.
        number: number of the trace, by which arrows between events of different traces are distinguished.
        offset_ns: Unix time in nanoseconds at time 0 of the trace.
        window: part of the job's time that the timeline shows.
        writer: writer of the Chrome trace; None means that no trace is written.
        drawing: the overview for the page, and the row of the trace in this overview; None means that no page
            is created.
        has_gpu: whether the row shows the events of a GPU; otherwise it shows the events of the first thread.
    """

    def __init__(
        self,
        name: str,
        number: int,
        offset_ns: int,
        window: TimeWindow,
        writer: TraceWriter | None,
        drawing: tuple[Overview, OverviewRow] | None,
        *,
        has_gpu: bool,
    ) -> None:
        self._name, self._number = name, number
        self._window, self._writer, self._drawing = window, writer, drawing
        # Floats have 53 bits: Unix microseconds lose fractions, their difference to the origin does not.
        self._shift_us = (offset_ns - window.origin_ns) / 1000
        self._from_us = (window.from_ns - window.origin_ns) / 1000
        self._to_us = (window.to_ns - window.origin_ns) / 1000
        self._has_gpu = has_gpu
        self._drawn_key: _Key | None = None
        self._drawn_to_us = -math.inf
        self._groups: dict[str, int] = {}
        self._lanes: dict[_Key, int] = {}
        self._last_us = -math.inf
        self._open_count = 0
        self._open: dict[_Key, list[_Open]] = {}
        self._group_names: dict[str, str] = {}
        self._lane_names: dict[_Key, str] = {}
        self.tally = EventTally()

    def add(self, items: Iterable[ScannedEvent | ScannedValue]) -> None:
        """Convert events, and end the events that the trace leaves open.

        Raises:
            TraceFileError: the rest of the file is damaged or cut off. All events before the damage have been
                converted.
        """
        try:
            for item in items:
                if isinstance(item, ScannedEvent):
                    reason = self._event(item.value)
                    if reason:
                        self.tally.refuse(reason, item.offset)
        finally:
            self._end_open_events()
            self._name_lanes()

    def _end_open_events(self) -> None:
        """End the events whose end is missing in the trace, for example because the program was killed."""
        for key, opened in self._open.items():
            for event in reversed(opened):
                args = {**event[2], "unfinished": True}
                self._slice(key, (event[0], event[1], args), max(0.0, self._last_us - event[0]), {})

    def _event(self, event: Any) -> str:
        """Convert one event of a profiler trace to an event of the timeline.

        Return the reason if the event cannot be used, else an empty text.
        """
        if not isinstance(event, dict):
            return _NOT_AN_OBJECT
        phase = event.get("ph")
        if not isinstance(phase, str) or not phase:
            return _NO_PHASE
        if phase == "M":
            self._metadata(event)
            return ""
        if phase not in "XBEiIRCstf":
            return _NOT_SHOWN
        at_us = finite_number(event.get("ts"))
        if at_us is None or abs(at_us) > _MAX_US:
            return _NO_TIME
        at_us += self._shift_us
        self._last_us = max(self._last_us, min(at_us, self._to_us))
        if phase in "XBE":
            return self._duration(phase, event, at_us)
        if not self._from_us <= at_us < self._to_us:
            self.tally.outside += 1
            return ""
        if phase == "C":
            return self._counter(event, at_us)
        return self._point(phase, event, at_us)

    def _duration(self, phase: str, event: Mapping[str, Any], at_us: float) -> str:
        key = _key(event)
        if phase == "X":
            duration_us = finite_number(event.get("dur"))
            if duration_us is None or not 0 <= duration_us <= _MAX_US:
                return _NO_DURATION
            return self._slice(key, (at_us, _text(event.get("name")), _args(event)), duration_us, event)
        opened = self._open.get(key, [])
        if phase == "E":
            if not opened:
                return _NO_BEGIN
            last = opened.pop()
            self._open_count -= 1
            return self._slice(key, last, at_us - last[0], event)
        if self._open_count >= MAX_OPEN:
            return _TOO_MANY_OPEN
        self._open_count += 1
        self._open.setdefault(key, opened).append((at_us, _text(event.get("name")), _args(event)))
        return ""

    def _slice(self, key: _Key, opened: _Open, duration_us: float, event: Mapping[str, Any]) -> str:
        start_us, name, args = opened
        if duration_us < 0:
            return _NO_DURATION
        end_us = start_us + duration_us
        if start_us >= self._to_us or end_us < self._from_us:
            self.tally.outside += 1
            return ""
        start_us, end_us = max(start_us, self._from_us), min(end_us, self._to_us)
        lane = self._lane(key)
        if lane is None:
            return _TOO_MANY_LANES
        self.tally.shown += 1
        if self._writer:
            self._writer.slice(lane, name, start_us, end_us - start_us, args)
        self._draw(key, name, event, start_us, end_us)
        return ""

    def _draw(self, key: _Key, name: str, event: Mapping[str, Any], start_us: float, end_us: float) -> None:
        """Add an event of a profiler trace to the overview chart, if the chart shows such events.

        If the trace has events on the GPU, the chart shows only these events. Otherwise it shows the
        outermost events of the first thread.
        """
        if self._drawing is None or is_gpu_event(event) is not self._has_gpu:
            return
        overview, row = self._drawing
        category = OTHER
        if self._has_gpu:
            category = "communication" if "nccl" in name.lower() else category
            category = category if event.get("cat") == "kernel" else "copy"
        else:
            self._drawn_key = self._drawn_key or key
            if key != self._drawn_key or start_us < self._drawn_to_us:
                return
            self._drawn_to_us = end_us
        origin_ns = self._window.origin_ns
        start_ns = max(self._window.from_ns, origin_ns + int(start_us * 1000))
        end_ns = min(self._window.to_ns, origin_ns + int(end_us * 1000))
        if start_ns < end_ns:
            overview.add(row.column(category), start_ns, end_ns)

    def _counter(self, event: Mapping[str, Any], at_us: float) -> str:
        args = event.get("args")
        values = {
            name: value
            for name, text in (args.items() if isinstance(args, dict) else ())
            if (value := finite_number(text)) is not None
        }
        if not values:
            return _NO_VALUE
        lane = self._lane(_key(event))
        if lane is None:
            return _TOO_MANY_LANES
        self.tally.shown += 1
        if self._writer:
            name = _text(event.get("name")) + _text(event.get("id"), " ")
            for part, value in list(values.items())[:MAX_ARGS]:
                self._writer.counter(lane[0], name, part, [(at_us, value)])
        return ""

    def _point(self, phase: str, event: Mapping[str, Any], at_us: float) -> str:
        """Write an instant, or one end of an arrow between two events (phases s, t and f)."""
        lane = self._lane(_key(event))
        if lane is None:
            return _TOO_MANY_LANES
        if phase in "iIR":
            self.tally.shown += 1
            if self._writer:
                self._writer.instant(lane, _text(event.get("name")), at_us, "t", _args(event))
            return ""
        flow_id = event.get("id")
        if not isinstance(flow_id, int) or isinstance(flow_id, bool) or not 0 <= flow_id < _FLOW_IDS:
            return _NO_FLOW_ID
        self.tally.shown += 1
        if self._writer:
            self._writer.flow(
                lane,
                (_text(event.get("cat")), _text(event.get("name"))),
                at_us,
                phase,
                self._number * _FLOW_IDS + flow_id,
            )
        return ""

    def _metadata(self, event: Mapping[str, Any]) -> None:
        """Record the name of a process or thread."""
        args = event.get("args")
        name = _text(args.get("name")) if isinstance(args, dict) else ""
        key = _key(event)
        if not name or len(self._lane_names) + len(self._group_names) >= 2 * MAX_PROFILE_LANES:
            return
        if event.get("name") == "process_name":
            self._group_names[key[0]] = name
        elif event.get("name") == "thread_name":
            self._lane_names[key] = name

    def _lane(self, key: _Key) -> tuple[int, int] | None:
        """Return process and thread number of a lane (row of events) of a profile.

        A new lane is added to the trace. The result is None if there are too many lanes.
        """
        if key in self._lanes:
            return self._groups[key[0]], self._lanes[key]
        if len(self._lanes) >= MAX_PROFILE_LANES:
            return None
        if self._writer is None:
            self._groups[key[0]] = self._lanes[key] = 0
            return 0, 0
        lanes = self._writer.lanes
        if key[0] not in self._groups:
            self._groups[key[0]] = lanes.add_group(f"{self._name} {key[0]}")
        number = lanes.add_lane(self._groups[key[0]], f"thread {key[1]}")
        if number is None:
            return None
        self._lanes[key] = number
        return self._groups[key[0]], number

    def _name_lanes(self) -> None:
        """Rename the lanes (rows) of the timeline to the names that the trace states.

        A trace may state the name of a lane after the events of this lane.
        """
        if self._writer is None:
            return
        for process, group in self._groups.items():
            if process in self._group_names:
                self._writer.lanes.rename_group(
                    group, f"{self._name} {self._group_names[process]} ({process})"
                )
        for key, lane in self._lanes.items():
            if key in self._lane_names:
                self._writer.lanes.rename_lane(lane, self._lane_names[key])


def _key(event: Mapping[str, Any]) -> _Key:
    """Return the process and thread of an event as text. Some tools write names instead of numbers."""
    return _text(event.get("pid")), _text(event.get("tid"))


def _text(value: Any, before: str = "") -> str:
    """Return a text or number as text of limited length; empty for a value of any other type."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return ""
    return before + str(value)[:MAX_TEXT]


def _args(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of an event that a timeline shows: short texts and numbers."""
    args = event.get("args")
    short: dict[str, Any] = {}
    for name, value in args.items() if isinstance(args, dict) else ():
        if len(short) == MAX_ARGS:
            break
        if isinstance(value, str):
            short[name[:MAX_TEXT]] = value[: MAX_TEXT + 1]
        elif isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 64):
            short[name[:MAX_TEXT]] = value
    return short
