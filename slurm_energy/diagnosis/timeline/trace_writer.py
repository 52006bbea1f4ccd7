"""Writer of Chrome traces, which Perfetto, chrome://tracing and other viewers open.

The format permits any order of events. Times are microseconds since the start of the timeline, with three
decimals. A viewer that reads these times as floats therefore keeps the nanoseconds. Source: "Trace Event
Format", Google, and the JSON importer of Perfetto.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from slurm_energy.diagnosis.timeline.lanes import LaneTable
from slurm_energy.diagnosis.timeline.trace_text import json_args, json_text

_BUFFER_LINES: Final = 8192


class TraceWriter:
    """Writer of one Chrome trace.

    Args:
        write: consumer of the encoded text.
        about: texts and numbers that viewers show as metadata of the trace.
    """

    def __init__(self, write: Callable[[bytes], object], about: Mapping[str, Any]) -> None:
        self._write = write
        self._lines: list[str] = []
        self._separator = ""
        self.lanes = LaneTable()
        self.events = 0
        header = {name: value for name, value in about.items() if value is not None}
        write(b'{"displayTimeUnit":"ms","otherData":' + json.dumps(header).encode() + b',"traceEvents":[\n')

    def add_lines(self, lines: Sequence[str]) -> None:
        """Append events to the trace. The caller has already encoded each event as a line of text."""
        self.events += len(lines)
        self._lines += lines
        if len(self._lines) >= _BUFFER_LINES:
            self._flush()

    def slice(
        self, lane: tuple[int, int], name: str, start_us: float, duration_us: float, args: Mapping[str, Any]
    ) -> None:
        """Append an event with a duration.

        Args:
            lane: process and thread number.
            name: name of the event.
            start_us: start, microseconds of the timeline.
            duration_us: duration in microseconds.
            args: further values, which a viewer shows as details of the event.
        """
        self.add_lines(
            [
                f'{{"ph":"X","ts":{start_us:.3f},"dur":{duration_us:.3f},{lane_keys(lane)},'
                f'"name":{json_text(name)},"args":{json_args(args)}}}'
            ]
        )

    def instant(
        self, lane: tuple[int, int], name: str, at_us: float, scope: str, args: Mapping[str, Any]
    ) -> None:
        """Append an event without duration to the trace.

        Args:
            lane: process and thread number, which identify the row (lane) of the event.
            name: name of the event.
            at_us: time, microseconds of the timeline.
            scope: part of the trace that the event concerns: `g` for the whole trace, `p` for a group of
                lanes, `t` for a lane.
            args: further values.
        """
        self.add_lines(
            [
                f'{{"ph":"i","ts":{at_us:.3f},{lane_keys(lane)},"s":"{scope}",'
                f'"name":{json_text(name)},"args":{json_args(args)}}}'
            ]
        )

    def flow(
        self, lane: tuple[int, int], labels: tuple[str, str], at_us: float, phase: str, number: int
    ) -> None:
        """Append one point of an arrow that connects events of the timeline.

        Args:
            lane: process and thread number of the event that encloses `at_us`.
            labels: category and name of the arrow.
            at_us: time of the point in microseconds of the timeline.
            phase: `s` if the arrow starts at this point, `f` if it ends there, `t` for a point in between.
            number: number of the arrow; the same for all its points.
        """
        binding = ',"bp":"e"' if phase == "f" else ""
        self.add_lines(
            [
                f'{{"ph":"{phase}","ts":{at_us:.3f},"id":{number},{lane_keys(lane)}{binding},'
                f'"cat":{json_text(labels[0])},"name":{json_text(labels[1])}}}'
            ]
        )

    def counter(self, group: int, name: str, unit: str, points: Sequence[tuple[float, float]]) -> None:
        """Append the values of a counter track.

        Args:
            group: process number.
            name: name of the track.
            unit: unit of the values.
            points: pairs of a time (microseconds of the timeline) and the finite value from that time on.
        """
        keys = f'"pid":{group},"tid":{group},"name":{json_text(name)},"args":{{{json_text(unit)}:'
        self.add_lines([f'{{"ph":"C","ts":{at_us:.3f},{keys}{value!r}}}}}' for at_us, value in points])

    def finish(self) -> None:
        """Append the names of all lanes (rows of bars in the trace) and end the document."""
        self._lines += self.lanes.metadata()
        self._flush()
        self._write(b"\n]}\n")

    def _flush(self) -> None:
        if self._lines:
            self._write((self._separator + ",\n".join(self._lines)).encode("ascii"))
            self._separator = ",\n"
            self._lines = []


def lane_keys(lane: tuple[int, int]) -> str:
    """Return the keys of an event that place it in the right lane (line of the timeline)."""
    return f'"pid":{lane[0]},"tid":{lane[1]}'
