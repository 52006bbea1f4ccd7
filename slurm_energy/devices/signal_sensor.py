"""Base class of the sensors from which the signals of jobs are sampled, and rates between two readings.

A signal describes how a part of the node is used: a share of time, a rate, a size. The registry
`diagnosis/signals.py` defines names and units. A sensor reports only what its interface provides; a value
that cannot be read is left out and is never 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple


class SignalReading(NamedTuple):
    """The value of one signal since the previous reading.

    Attributes:
        signal: name in the registry of signals, which includes the unit.
        part: part of the node: empty for the node or the job, else for example `gpu[0]` or `eth0`.
        value: mean since the previous reading, or the present value of a size.
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
        """Return the signals since the previous call, without those that are unknown.

        Args:
            now_s: present time in seconds of a clock that does not jump.
        """

    def forget(self) -> None:
        """Discard the previous reading, so that the next call only begins an interval."""
        return

    def close(self) -> None:
        """Close the sensor's file descriptors."""
        return


class RateMeter:
    """Rates of counters between two readings.

    Counters never decrease. A smaller value means that the counter was reset, so that the rate of this
    interval is unknown.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def increase(self, key: str, value: float, now_s: float) -> tuple[float, float] | None:
        """Return the increase since the previous reading and its seconds; None if it is unknown.

        Args:
            key: name of the counter.
            value: the counter.
            now_s: time of the reading in seconds of a clock that does not jump.
        """
        last = self._last.get(key)
        self._last[key] = value, now_s
        if last is None or value < last[0] or now_s <= last[1]:
            return None
        return value - last[0], now_s - last[1]

    def per_second(self, key: str, value: float, now_s: float) -> float | None:
        """Return the increase per second since the previous reading; None if it is unknown.

        Arguments as for `increase`.
        """
        increase = self.increase(key, value, now_s)
        return None if increase is None else increase[0] / increase[1]

    def forget(self) -> None:
        """Discard all previous readings."""
        self._last.clear()


def numbers(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield name and value of each line `NAME NUMBER` of a file; other lines are skipped."""
    for line in content.splitlines():
        name, _, value = line.partition(b" ")
        if value.isdigit():
            yield name, int(value)
