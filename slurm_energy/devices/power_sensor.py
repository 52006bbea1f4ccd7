"""Sources that tell watts instead of joules, and how they become energy counters.

Only the shapes and the integration live here; one module per interface implements a gauge.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.devices.driver import DeviceError, EnergyCounter
from slurm_energy.records import Quality

_MAX_GAP_INTERVALS = 3.0
_MAX_GAP_S = 30.0  # more than the longest sampling interval


def boottime_s() -> float:
    """Return seconds since boot, suspend included, as the sampler's clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class PowerReading:
    """A power and when it was measured.

    Attributes:
        time_s: seconds since boot, see `boottime_s`.
        watts: power at that time, or the mean that a sensor gave then.
    """

    time_s: float
    watts: float


class PowerSensor(ABC):
    """A source of power readings.

    Attributes:
        key: unique name, e.g. `ipmi:dcmi`.
        component: component of a record that it belongs to: `cpu`, `dram`, `gpu[0]`, `node`.
        source: interface for the record and for `preference`, e.g. `power_meter:acpi`.
        max_watts: power that the part never exceeds.
        interval_s: seconds between new values; 0 for a source that is always up to date.
        quality: how far the figure can be trusted.
    """

    key: str
    component: str
    source: str
    max_watts: float
    interval_s: float = 0.0
    quality: Quality = Quality.MEASURED

    @abstractmethod
    def read(self) -> PowerReading:
        """Return the newest reading without waiting for a new one.

        Raises:
            DeviceError: no reading.
        """

    def readings(self) -> Sequence[PowerReading]:
        """Return the readings since the last call, the newest last; at least the newest.

        Raises:
            DeviceError: no reading.
        """
        return [self.read()]

    def close(self) -> None:
        """Give descriptors, threads and connections back."""
        return


class PowerIntegrator:
    """Energy below readings of power: trapezoids, and the last power held until the next reading.

    What is told never goes down: where holding the last power was too much, the excess is taken from
    what follows. After a gap that is too long nothing is added for it.
    """

    def __init__(self, max_gap_s: float) -> None:
        self._max_gap_s = max_gap_s
        self._last: PowerReading | None = None
        self._sum_uj = 0.0
        self._reported_uj = 0

    def add(self, reading: PowerReading) -> float | None:
        """Take a reading; one that is not newer than the last is ignored.

        Returns:
            Seconds of a gap that was too long to say what happened in it, None without one.
        """
        last = self._last
        if last is not None and reading.time_s <= last.time_s:
            return None
        self._last = reading
        if last is None:
            return None
        length_s = reading.time_s - last.time_s
        if length_s > self._max_gap_s:
            self._sum_uj = float(self._reported_uj)
            return length_s
        self._sum_uj += (last.watts + reading.watts) / 2 * length_s * 1e6
        return None

    def energy_uj(self, now_s: float) -> int:
        """Return microjoules since the first reading, the last power held until `now_s`."""
        held_uj = self._last.watts * max(0.0, now_s - self._last.time_s) * 1e6 if self._last else 0.0
        self._reported_uj = max(self._reported_uj, round(self._sum_uj + held_uj))
        return self._reported_uj

    def dump(self) -> dict[str, float] | None:
        """Return the state as plain data; None before the first reading."""
        if self._last is None:
            return None
        last = self._last
        return {
            "time_s": last.time_s,
            "watts": last.watts,
            "sum_uj": self._sum_uj,
            "reported_uj": self._reported_uj,
        }

    def load(self, data: Mapping[str, float]) -> None:
        """Go on from the output of `dump`; the time since is a gap like any other."""
        self._last = PowerReading(data["time_s"], data["watts"])
        self._sum_uj, self._reported_uj = data["sum_uj"], int(data["reported_uj"])


class IntegratedPowerCounter(EnergyCounter):
    """A gauge as an energy counter, so that whoever samples counters needs to know nothing of gauges.

    It counts from its first reading on, over restarts of the agent too, and never wraps.
    """

    range_uj = None

    def __init__(self, gauge: PowerSensor, clock: Callable[[], float] = boottime_s) -> None:
        self.key = gauge.key
        self.component = gauge.component
        self.source = gauge.source
        self.quality = gauge.quality
        self.interval_s = gauge.interval_s
        # A correction may add half an interval's energy at once, which is not a reset of the counter.
        self.max_watts = gauge.max_watts * max(1.0, gauge.interval_s)
        self._gauge = gauge
        self._clock = clock
        self._max_gap_s = max(_MAX_GAP_S, _MAX_GAP_INTERVALS * gauge.interval_s)
        self._integral = PowerIntegrator(self._max_gap_s)

    def read(self) -> int:
        """Return microjoules.

        Raises:
            DeviceError: the gauge has no reading, its last one is old, or there was none for too long.
        """
        readings = self._gauge.readings()
        now_s = self._clock()
        gaps = [gap_s for reading in readings if (gap_s := self._integral.add(reading)) is not None]
        if gaps:
            raise DeviceError(self.key, f"no reading for {gaps[0]:.0f} s: energy of that time is not known")
        reading = readings[-1]
        if now_s - reading.time_s > self._max_gap_s:
            raise DeviceError(self.key, f"the last reading is {now_s - reading.time_s:.0f} s old")
        return self._integral.energy_uj(now_s)

    def dump(self) -> dict[str, float] | None:
        """Return the integral: it is nowhere but here."""
        return self._integral.dump()

    def load(self, data: Mapping[str, float]) -> None:
        """Go on from an integral of the same boot."""
        self._integral.load(data)

    def close(self) -> None:
        """Close the gauge."""
        self._gauge.close()
