"""The recorded signals of one job: mean values in equal intervals, in bounded memory."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable
from typing import Final

from slurm_energy.devices.signal_sensor import SignalReading
from slurm_energy.diagnosis.signals import MAX_POINTS, ObservedSeries

MAX_SERIES: Final = 512
"""Series of one job on one node; further ones are not recorded."""
_SAVED_GROWTH: Final = 0.05


class _Column:
    """Recorded values of one signal of a job, by time interval.

    For each interval, the integral of the values and the number of covered seconds are stored.
    """

    __slots__ = ("integrals", "seconds", "source")

    def __init__(self, source: str, points: int) -> None:
        self.source = source
        self.integrals = array("d", [0.0] * points)
        self.seconds = array("d", [0.0] * points)


class SignalRecording:
    """Series of signals that grow while a job runs.

    All series have the same intervals. An interval in which a signal was not read is unknown.

    Args:
        start: time of the first interval, in seconds since boot.
        interval_s: seconds per interval. The length of the intervals doubles whenever a series would exceed
            `MAX_POINTS` intervals.

    Attributes:
        latest: the latest readings by signal and part of the node.
    """

    def __init__(self, start: float, interval_s: float) -> None:
        self.start = start
        self.interval_s = interval_s
        self.latest: dict[tuple[str, str], float] = {}
        self._columns: dict[tuple[str, str], _Column] = {}
        self._points = 0
        self._saved = 0

    def __bool__(self) -> bool:
        return bool(self._columns)

    def add(self, start: float, end: float, readings: Iterable[SignalReading]) -> None:
        """Add the readings of one pass (reading of all signal sensors).

        Args:
            start: time of the previous pass, in seconds since boot. The readings apply from this time on.
            end: time of this pass, in seconds since boot.
            readings: the readings. The text that names the source of a reading may end with a restriction in
                brackets. The restriction then also applies to all later readings of this series.
        """
        start = max(start, self.start)
        if end <= start:
            return
        while end - self.start > MAX_POINTS * self.interval_s:
            self._coarsen()
        first = int((start - self.start) // self.interval_s)
        last = min(max(first, math.ceil((end - self.start) / self.interval_s) - 1), MAX_POINTS - 1)
        self._extend(last + 1)
        covered = [(index, self._covered(index, start, end)) for index in range(first, last + 1)]
        self.latest = {}
        for reading in readings:
            if (column := self._column(reading)) is None:
                continue
            self.latest[reading.signal, reading.part] = reading.value
            for index, seconds in covered:
                column.integrals[index] += reading.value * seconds
                column.seconds[index] += seconds

    def series(self, node: str, unix_at: Callable[[float], float]) -> tuple[ObservedSeries, ...]:
        """Return the recorded series.

        Args:
            node: Slurm's name of the node.
            unix_at: converts seconds since boot to Unix seconds.
        """
        start_s = unix_at(self.start)
        return tuple(
            ObservedSeries(signal, part, node, column.source, start_s, self.interval_s, _means(column))
            for (signal, part), column in self._columns.items()
        )

    @property
    def has_grown(self) -> bool:
        """Whether the recording grew by more than 5 % since it was last saved.

        Each write stores the whole recording. This threshold keeps the writes of a long recording rare.
        """
        return abs(self._points - self._saved) > self._saved * _SAVED_GROWTH

    def mark_saved(self) -> None:
        """Record that the current state is on disk."""
        self._saved = self._points

    def parts(self) -> list[bytes | memoryview]:
        """Return the state as pieces of bytes. Joined, the pieces are the input of `load`."""
        header = {
            "start": self.start,
            "interval_s": self.interval_s,
            "points": self._points,
            "columns": [[*key, column.source] for key, column in self._columns.items()],
        }
        pieces: list[bytes | memoryview] = [json.dumps(header).encode() + b"\n"]
        for column in self._columns.values():
            pieces += [memoryview(column.integrals), memoryview(column.seconds)]
        return pieces

    @classmethod
    def load(cls, data: bytes) -> SignalRecording:
        """Restore a recording of signals from `data`, the joined output of `parts`.

        Raises:
            ValueError, KeyError, TypeError: `data` is malformed.
        """
        head, _, body = data.partition(b"\n")
        header = json.loads(head)
        recording = cls(float(header["start"]), float(header["interval_s"]))
        points = recording._points = int(header["points"])
        size = 8 * points
        if len(body) != 2 * size * len(header["columns"]) or points > MAX_POINTS:
            raise ValueError("recording of the wrong length")
        for number, (signal, part, source) in enumerate(header["columns"]):
            column = recording._columns[str(signal), str(part)] = _Column(str(source), 0)
            offset = 2 * size * number
            column.integrals.frombytes(body[offset : offset + size])
            column.seconds.frombytes(body[offset + size : offset + 2 * size])
        return recording

    def _column(self, reading: SignalReading) -> _Column | None:
        """Return the column in which a reading is recorded.

        Each pair of a signal and a part of the node has its own column. Return None if there is no room for
        another column.
        """
        key = reading.signal, reading.part
        column = self._columns.get(key)
        if column is None:
            if len(self._columns) >= MAX_SERIES or not math.isfinite(reading.value):
                return None
            column = self._columns[key] = _Column(reading.source, self._points)
        elif "(" not in column.source:
            column.source = reading.source
        return column if math.isfinite(reading.value) else None

    def _extend(self, points: int) -> None:
        missing = points - self._points
        if missing > 0:
            for column in self._columns.values():
                column.integrals.extend([0.0] * missing)
                column.seconds.extend([0.0] * missing)
            self._points = points

    def _covered(self, index: int, start: float, end: float) -> float:
        low = self.start + index * self.interval_s
        return max(0.0, min(end, low + self.interval_s) - max(start, low))

    def _coarsen(self) -> None:
        self.interval_s *= 2
        for column in self._columns.values():
            column.integrals, column.seconds = _pairs(column.integrals), _pairs(column.seconds)
        self._points = (self._points + 1) // 2


def _means(column: _Column) -> array[float]:
    pairs = zip(column.integrals, column.seconds, strict=True)
    return array("d", (integral / seconds if seconds > 0 else math.nan for integral, seconds in pairs))


def _pairs(column: array[float]) -> array[float]:
    padded = column if len(column) % 2 == 0 else column + array("d", [0.0])
    return array("d", (a + b for a, b in zip(padded[::2], padded[1::2], strict=True)))
