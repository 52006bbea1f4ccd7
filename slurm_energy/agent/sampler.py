"""Reads every counter and tells how much each moved, exactly or marked uncertain. Knows no jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy.agent.clock import Clock
from slurm_energy.agent.complaints import Complaints
from slurm_energy.devices.interface import DeviceError, EnergyCounter, ThrottleSensor
from slurm_energy.quantities import counter_delta

_SAFE_PART_OF_RANGE = 0.9
"""An interval in which the part at its highest power would use more of the range than this is uncertain."""
_UPDATE_SLACK_S = 0.5
"""Counters are updated every 1 ms (RAPL) to 100 ms (NVML), so energy may show up this much later."""


@dataclass(frozen=True, slots=True)
class Delta:
    """How far one counter moved.

    Attributes:
        start: boot time of the earlier reading, in seconds.
        energy_uj: microjoules; a lower bound if not certain.
        certain: no wrap or reset can have been missed.
    """

    start: float
    energy_uj: int
    certain: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """All counters between two samples; a counter that could not be read is missing.

    Attributes:
        start, end: boot time in seconds.
        deltas: by counter key.
        throttled_s: seconds of throttling by component, for components that have a sensor.
    """

    start: float
    end: float
    deltas: Mapping[str, Delta]
    throttled_s: Mapping[str, float]

    @property
    def length_s(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class _Reading:
    time: float
    value_uj: int


def moved(counter: EnergyCounter, earlier: _Reading, later: _Reading) -> Delta:
    """Return how far a counter moved between two readings.

    A counter without a range that reads less was reset (driver reload): what it shows counts from then on.
    A movement that the hardware cannot have made in that time means a reset too, and counts as nothing.
    """
    length_s = later.time - earlier.time
    if counter.range_uj is None:
        if later.value_uj < earlier.value_uj:
            return Delta(earlier.time, later.value_uj, certain=False)
        energy_uj, certain = later.value_uj - earlier.value_uj, True
    else:
        energy_uj = counter_delta(earlier.value_uj, later.value_uj, counter.range_uj)
        certain = length_s * counter.most_watts * 1e6 <= _SAFE_PART_OF_RANGE * counter.range_uj
    if energy_uj > counter.most_watts * 1e6 * (length_s + _UPDATE_SLACK_S):
        return Delta(earlier.time, 0, certain=False)
    return Delta(earlier.time, energy_uj, certain)


class Sampler:
    """Keeps the last reading of every counter.

    Attributes:
        time: boot time of the last sample, in seconds; None before the first.
    """

    def __init__(
        self, counters: Sequence[EnergyCounter], throttles: Sequence[ThrottleSensor], clock: Clock
    ) -> None:
        self._counters = counters
        self._throttles = throttles
        self._clock = clock
        self._last: dict[str, _Reading] = {}
        self.time: float | None = None
        self._complaints = Complaints()

    def sample(self) -> Interval | None:
        """Read everything. Returns None for the first sample after `forget`."""
        before = self._clock.boottime()
        values = {c.key: value for c in self._counters if (value := self._read(c)) is not None}
        now = (before + self._clock.boottime()) / 2
        readings = {key: _Reading(now, value) for key, value in values.items()}
        start, self.time = self.time, now
        deltas = {
            counter.key: moved(counter, self._last[counter.key], readings[counter.key])
            for counter in self._counters
            if counter.key in readings and counter.key in self._last
        }
        self._last.update(readings)
        throttled = self._throttled(now - start if start is not None else 0.0)
        return None if start is None else Interval(start, now, deltas, throttled)

    def forget(self) -> None:
        """Drop all readings: nobody is interested in the time until the next sample."""
        self._last.clear()
        self.time = None

    def readings(self) -> dict[str, Any]:
        """Return the last readings for `since`, JSON-ready."""
        return {
            "boot_id": self._clock.boot_id,
            "time": self.time,
            "counters": {key: [reading.time, reading.value_uj] for key, reading in self._last.items()},
        }

    def since(self, earlier: Mapping[str, Any]) -> Interval | None:
        """Return the interval from readings of an earlier run to the last sample.

        None if they are of another boot, or there is no sample on either side.
        """
        if earlier["boot_id"] != self._clock.boot_id or earlier["time"] is None or self.time is None:
            return None
        known = {key: _Reading(float(t), int(value)) for key, (t, value) in earlier["counters"].items()}
        deltas = {
            counter.key: moved(counter, known[counter.key], self._last[counter.key])
            for counter in self._counters
            if counter.key in known and counter.key in self._last
        }
        return Interval(float(earlier["time"]), self.time, deltas, {})

    def _read(self, counter: EnergyCounter) -> int | None:
        try:
            value = counter.read()
        except DeviceError as error:
            self._complaints.tell(f"counter {counter.key}", f"cannot be read: {error}")
            return None
        self._complaints.settle(f"counter {counter.key}", "can be read again")
        return value

    def _throttled(self, interval_s: float) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for sensor in self._throttles:
            try:
                value = sensor.seconds(interval_s)
            except DeviceError:
                continue
            seconds[sensor.component] = max(value, seconds.get(sensor.component, 0.0))
        return seconds
