"""The power trace of one job: its mean power in equal intervals, in bounded memory."""

from __future__ import annotations

import base64
import json
import math
import sys
import zlib
from array import array
from collections.abc import Collection, Mapping
from typing import Any

MAX_POINTS = 7200
"""Intervals per trace; beyond it neighbours are merged and the interval doubles (2 h at 1 Hz, then 2 s)."""
_PARTS = 100
_WATT_STEPS = 32  # values rounded to 1/32 W compress to a third, far below any counter's accuracy


class TraceBuilder:
    """A power trace that grows while its job runs.

    The trace holds the energy per interval and component.

    Args:
        start: time of the first interval, in seconds since boot.
        interval_s: seconds per interval. The length of the intervals doubles whenever the trace would exceed
            MAX_POINTS intervals.
        columns: component names.
    """

    def __init__(self, start: float, interval_s: float, columns: Collection[str]) -> None:
        self.start = start
        self.interval_s = interval_s
        self._points = 0
        self._written = 0
        self._joules = {name: array("d") for name in columns}
        self._covered = {name: array("d") for name in columns}

    def add(self, start: float, end: float, joules: Mapping[str, float]) -> None:
        """Spread energy evenly over the trace intervals between two times.

        Args:
            start: time in seconds since boot from which the energy was used.
            end: time in seconds since boot until which the energy was used.
            joules: energy by component. The power of an absent component is unknown in this time, unless
                another call adds energy of that component.
        """
        start = max(start, self.start)
        if end <= start:
            return
        while end - self.start > MAX_POINTS * self.interval_s:
            self._halve()
        for index in range(self._index(start), min(self._index(end), MAX_POINTS - 1) + 1):
            low = max(start, self.start + index * self.interval_s)
            high = min(end, self.start + (index + 1) * self.interval_s)
            if high > low:
                self._put(index, high - low, (high - low) / (end - start), joules)

    def watts(self) -> dict[str, array[float]]:
        """Return the mean watts of every trace interval by component.

        Unknown power is NaN.
        """
        return {
            name: array("f", map(_watts, column, self._covered[name]))
            for name, column in self._joules.items()
        }

    @property
    def is_plot(self) -> bool:
        """Whether the trace has more than one interval, so that it can be plotted."""
        return self._points > 1

    def encode(self, start_unix: float) -> dict[str, Any]:
        """Return the power trace in the JSON format of docs/reference/protocol.md.

        Args:
            start_unix: Unix time of the first interval in seconds.
        """
        columns = {}
        for name, column in self.watts().items():
            if sys.byteorder == "big":
                column.byteswap()
            columns[name] = base64.b64encode(zlib.compress(column.tobytes())).decode("ascii")
        return {"start": start_unix, "interval_s": self.interval_s, "columns": columns}

    @property
    def has_grown(self) -> bool:
        """Whether the trace has grown by more than 1 % since it was last written to disk.

        Each write stores the whole trace. With this threshold, a long trace is written only rarely.
        """
        return abs(self._points - self._written) > self._written // _PARTS

    def written(self) -> None:
        """Record that the current state of the trace is on disk."""
        self._written = self._points

    def parts(self) -> list[bytes | memoryview]:
        """Return the state of the trace in pieces of bytes.

        The pieces in a row are the input of `load`. A long trace has hundreds of kB, so the pieces are views
        of the arrays, not copies.
        """
        header = {
            "start": self.start,
            "interval_s": self.interval_s,
            "columns": list(self._joules),
            "points": self._points,
        }
        columns = [*self._covered.values(), *self._joules.values()]
        return [json.dumps(header).encode() + b"\n", *(memoryview(column) for column in columns)]

    @classmethod
    def load(cls, data: bytes) -> TraceBuilder:
        """Restore a trace from `data`, the joined output of `parts`.

        Raises:
            ValueError: `data` is malformed.
        """
        head, _, body = data.partition(b"\n")
        header = json.loads(head)
        trace = cls(header["start"], header["interval_s"], header["columns"])
        trace._points = header["points"]
        size = 8 * trace._points
        if len(body) != size * 2 * len(trace._joules):
            raise ValueError("trace file of the wrong length")
        for index, part in enumerate((*trace._covered.values(), *trace._joules.values())):
            part.frombytes(body[index * size : (index + 1) * size])
        return trace

    def _index(self, time: float) -> int:
        return int((time - self.start) // self.interval_s)

    def _put(self, index: int, length_s: float, fraction: float, joules: Mapping[str, float]) -> None:
        missing = index + 1 - self._points
        if missing > 0:
            for column in (*self._covered.values(), *self._joules.values()):
                column.extend([0.0] * missing)
            self._points += missing
        for name, column in self._joules.items():
            if name in joules:
                column[index] += joules[name] * fraction
                self._covered[name][index] += length_s

    def _halve(self) -> None:
        self.interval_s *= 2
        self._covered = {name: _pairs(column) for name, column in self._covered.items()}
        self._joules = {name: _pairs(column) for name, column in self._joules.items()}
        self._points = (self._points + 1) // 2


def _pairs(column: array[float]) -> array[float]:
    padded = column if len(column) % 2 == 0 else column + array("d", [0.0])
    return array("d", (a + b for a, b in zip(padded[::2], padded[1::2], strict=True)))


def _watts(energy: float, covered: float) -> float:
    if covered <= 0:
        return math.nan
    return round(energy / covered * _WATT_STEPS) / _WATT_STEPS
