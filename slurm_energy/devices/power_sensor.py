"""Sensors that report power instead of energy, and the integration of their readings to energy.

Each hardware interface implements its sensor in a module of its own.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.devices.driver import DeviceError, EnergyCounter
from slurm_energy.records import Quality

_MAX_GAP_INTERVALS = 3.0
_MAX_GAP_S = 30.0  # longer than the maximum sampling interval


def boottime_s() -> float:
    """Return seconds since boot including suspend, the clock of the sampler."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class PowerReading:
    """A power and the time of its measurement.

    Attributes:
        time_s: seconds since boot, see `boottime_s`.
        watts: power at that time, or the mean that a sensor reported then.
    """

    time_s: float
    watts: float


class PowerSensor(ABC):
    """A source of power readings.

    Attributes:
        key: unique name, for example `ipmi:dcmi`.
        component: component of a record that the sensor belongs to: `cpu`, `dram`, `gpu[0]`, `node`.
        source: name of the interface in records and in `source_priority`, for example `power_meter:acpi`.
        max_watts: power in watts that the component never exceeds.
        interval_s: seconds between new values; 0 for a source that is always up to date.
        quality: quality of the readings, for records.
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
            DeviceError: there is no reading.
        """

    def readings(self) -> Sequence[PowerReading]:
        """Return the readings since the last call, the newest last; at least the newest reading.

        Raises:
            DeviceError: there is no reading.
        """
        return [self.read()]

    def close(self) -> None:
        """Release descriptors, threads and connections."""
        return


class PowerIntegrator:
    """Integrator of power readings to energy, by trapezoids; the last power is held until the next reading.

    The reported energy never decreases: if holding the last power added too much, the excess is subtracted
    from later energy. Nothing is added for a gap that exceeds the maximum.
    """

    def __init__(self, max_gap_s: float) -> None:
        self._max_gap_s = max_gap_s
        self._last: PowerReading | None = None
        self._sum_uj = 0.0
        self._reported_uj = 0

    def add(self, reading: PowerReading) -> float | None:
        """Add a reading; a reading that is not newer than the last one is ignored.

        Returns:
            Length in seconds of a gap that was too long to integrate; None if there was none.
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
        """Return microjoules since the first reading, with the last power held until `now_s`."""
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
        """Continue from the output of `dump`; the time since then is treated like any other gap."""
        self._last = PowerReading(data["time_s"], data["watts"])
        self._sum_uj, self._reported_uj = data["sum_uj"], int(data["reported_uj"])


class IntegratedPowerCounter(EnergyCounter):
    """A power sensor as an energy counter, so that the sampler handles counters only.

    It counts from its first reading on, also across restarts of the agent, and never wraps.
    """

    range_uj = None

    def __init__(self, sensor: PowerSensor, clock: Callable[[], float] = boottime_s) -> None:
        self.key = sensor.key
        self.component = sensor.component
        self.source = sensor.source
        self.quality = sensor.quality
        self.interval_s = sensor.interval_s
        # A correction may add the energy of half an interval at once, which must not look like a reset.
        self.max_watts = sensor.max_watts * max(1.0, sensor.interval_s)
        self._sensor = sensor
        self._clock = clock
        self._max_gap_s = max(_MAX_GAP_S, _MAX_GAP_INTERVALS * sensor.interval_s)
        self._integral = PowerIntegrator(self._max_gap_s)

    def read(self) -> int:
        """Return microjoules.

        Raises:
            DeviceError: the sensor has no reading, its last reading is too old, or readings were missing too
                long.
        """
        readings = self._sensor.readings()
        now_s = self._clock()
        gaps = [gap_s for reading in readings if (gap_s := self._integral.add(reading)) is not None]
        if gaps:
            raise DeviceError(self.key, f"no reading for {gaps[0]:.0f} s: the energy of that time is unknown")
        reading = readings[-1]
        if now_s - reading.time_s > self._max_gap_s:
            raise DeviceError(self.key, f"the last reading is {now_s - reading.time_s:.0f} s old")
        return self._integral.energy_uj(now_s)

    def dump(self) -> dict[str, float] | None:
        """Return the state of the integrator, which exists nowhere else."""
        return self._integral.dump()

    def load(self, data: Mapping[str, float]) -> None:
        """Continue from the state of an integrator of the same boot."""
        self._integral.load(data)

    def close(self) -> None:
        """Close the sensor."""
        self._sensor.close()
