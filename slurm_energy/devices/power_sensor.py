"""Sensors that report power instead of energy.

The readings of a sensor are integrated to energy.

Each hardware interface implements its sensor class in a module of its own.
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
    """Return the seconds since boot, including suspended time. All samples of the agent use this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class PowerReading:
    """A power, and the time at which it was measured.

    Attributes:
        time_s: time of the measurement in seconds since boot, see `boottime_s`.
        watts: power at this time, or a mean that the sensor reported at this time.
    """

    time_s: float
    watts: float


class PowerSensor(ABC):
    """A source of power readings.

    Attributes:
        key: unique name, for example `ipmi:dcmi`.
        component: component of an energy record that the sensor measures: `cpu`, `dram`, `gpu[0]`, `node`.
        source: name of the interface in records and in `source_priority`, for example `power_meter:acpi`.
        max_watts: upper bound of the component's power in watts.
        interval_s: seconds between new values; 0 for a source that is always up to date.
        quality: whether the readings are measured, modelled or partial.
    """

    key: str
    component: str
    source: str
    max_watts: float
    interval_s: float = 0.0
    quality: Quality = Quality.MEASURED

    @abstractmethod
    def read(self) -> PowerReading:
        """Return the newest reading of the sensor without waiting for another one.

        Raises:
            DeviceError: there is no reading.
        """

    def readings(self) -> Sequence[PowerReading]:
        """Return the readings of the power sensor since the last call, the newest last.

        If there is no new reading, the newest earlier reading is returned again.

        Raises:
            DeviceError: there is no reading.
        """
        return [self.read()]

    def close(self) -> None:
        """Close the sensor's file descriptors and connections, and stop its threads."""
        return


class PowerIntegrator:
    """Integrator of power readings to energy by the trapezoidal rule.

    Until the next reading arrives, the power is assumed to stay at the value of the newest reading. If the
    next reading shows that too much energy was added, the excess is subtracted from the energy of later
    intervals. The reported energy therefore never decreases.

    Args:
        max_gap_s: maximum time between two readings in seconds. No energy is added for a longer gap.
    """

    def __init__(self, max_gap_s: float) -> None:
        self._max_gap_s = max_gap_s
        self._last: PowerReading | None = None
        self._sum_uj = 0.0
        self._reported_uj = 0

    def add(self, reading: PowerReading) -> float | None:
        """Add a reading. A reading that is not newer than the previous one is ignored.

        Returns:
            Length in seconds of the gap before this reading if the gap was too long to integrate, else None.
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
        """Return the energy since the first reading of a power sensor in microjoules.

        Args:
            now_s: end of the interval, in seconds since boot. The power is assumed constant from the newest
                reading until this time.
        """
        held_uj = self._last.watts * max(0.0, now_s - self._last.time_s) * 1e6 if self._last else 0.0
        self._reported_uj = max(self._reported_uj, round(self._sum_uj + held_uj))
        return self._reported_uj

    def dump(self) -> dict[str, float] | None:
        """Return the state as plain data for `load`; None before the first reading."""
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
        """Continue from a result of `dump`.

        The time since the call of `dump` is treated like any other gap between readings.
        """
        self._last = PowerReading(data["time_s"], data["watts"])
        self._sum_uj, self._reported_uj = data["sum_uj"], int(data["reported_uj"])


class IntegratedPowerCounter(EnergyCounter):
    """Energy counter that integrates the readings of a power sensor.

    Because this class converts power sensors to energy counters, the sampler handles energy counters only.
    The count starts at the first reading of the sensor, continues after a restart of the agent, and never
    wraps.
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
        """Return the energy since the first reading in microjoules.

        Raises:
            DeviceError: the sensor has no reading, its newest reading is too old, or the gap between two
                readings was too long to integrate.
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
        """Return the state of the integrator for a checkpoint; None before the first reading.

        The state must be stored, because the hardware keeps no count of energy.
        """
        return self._integral.dump()

    def load(self, data: Mapping[str, float]) -> None:
        """Restore the state of the counter that `dump` has returned.

        The state must be from the time since the last boot of the node.
        """
        self._integral.load(data)

    def close(self) -> None:
        """Close the power sensor."""
        self._sensor.close()
