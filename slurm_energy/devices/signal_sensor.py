"""Base class of the sensors for the signals of jobs.

The module also has a meter for rates between two readings.

A signal is a share of time, a rate or a size that describes how a part of the node is used. The registry
`diagnosis/signals.py` defines names and units. A sensor omits values that its interface does not provide or
that cannot be read. A sensor never reports 0 for an omitted value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple


class SignalReading(NamedTuple):
    """The value of one signal since the previous reading.

    Attributes:
        signal: name in the registry of signals, which includes the unit.
        part: part of the node, for example `gpu[0]` or `eth0`; empty for the whole node or job.
        value: mean since the previous reading; for a size, the present value.
        source: interface from which the value was read.
    """

    signal: str
    part: str
    value: float
    source: str


class SignalSensor(ABC):
    """Sensor of signals. Every call of `read` ends one interval and begins the next.

    Attributes:
        part: part of the node to which the signals belong, as in `SignalReading`; empty if the sensor
            reports several parts.
    """

    part: str = ""

    @abstractmethod
    def read(self, now_s: float) -> list[SignalReading]:
        """Return the values of the signals for the time since the previous call.

        Signals whose value is unknown are left out.

        Args:
            now_s: current time in seconds, from a monotonic clock.
        """

    def forget(self) -> None:
        """Discard the previous reading, so that the next call of `read` only begins an interval."""
        return

    def close(self) -> None:
        """Close the sensor's file descriptors."""
        return


class RateMeter:
    """Meter of the rates of counters between two readings.

    Counters never decrease. A value below the previous one means that the counter was reset. The rate of this
    interval is then unknown.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def increase(self, key: str, value: float, now_s: float) -> tuple[float, float] | None:
        """Return a counter's increase since the previous reading, and the seconds between the two readings.

        Return None if the increase is unknown.

        Args:
            key: name of the counter.
            value: current value of the counter.
            now_s: time of the reading in seconds, from a monotonic clock.
        """
        last = self._last.get(key)
        self._last[key] = value, now_s
        if last is None or value < last[0] or now_s <= last[1]:
            return None
        return value - last[0], now_s - last[1]

    def per_second(self, key: str, value: float, now_s: float) -> float | None:
        """Return a counter's increase per second since the previous reading; None if the increase is unknown.

        The arguments have the same meaning as in `increase`.
        """
        increase = self.increase(key, value, now_s)
        return None if increase is None else increase[0] / increase[1]

    def forget(self) -> None:
        """Discard all previous readings."""
        self._last.clear()


def numbers(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the name and the value of each line `NAME NUMBER` of a file. Other lines are skipped."""
    for line in content.splitlines():
        name, _, value = line.partition(b" ")
        if value.isdigit():
            yield name, int(value)
