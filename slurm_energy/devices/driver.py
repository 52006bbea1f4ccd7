"""Base classes of drivers: energy counters, knobs and throttle sensors.

Each hardware interface implements them in a module of its own. An interface that a node lacks contributes
nothing to the lists of devices, so that no caller has to ask whether a device exists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

from slurm_energy.errors import UnavailableError
from slurm_energy.records import Quality


class DeviceError(UnavailableError):
    """A counter or knob cannot be read or written; `why` is the reason that the hardware gives."""


class DeviceGoneError(DeviceError):
    """The device is absent now; a device that appears in its place may be another one, or start from zero."""


class WriteStage(IntEnum):
    """Position of a knob in the order of writes, lowest first; restoring uses the reverse order.

    GPU persistence comes first because a driver that unloads forgets limits. Boost comes before the
    frequency range because a write to boost may overwrite the range. A RAPL limit is enabled last because it
    counts only once it is enabled.
    """

    PERSISTENCE = 10
    GPU_LIMIT = 11
    GPU_CLOCK = 12
    BOOST = 20
    GOVERNOR = 21
    PREFERENCE = 22
    FREQUENCY = 23
    SETSPEED = 24
    RAPL_WINDOW = 30
    RAPL_LIMIT = 31
    RAPL_ENABLE = 32


class EnergyCounter(ABC):
    """A counter of energy that increases monotonically or wraps.

    Attributes:
        key: unique name, for example `powercap:package-0`.
        component: component of a record that the counter belongs to: `cpu`, `dram`, `gpu[0]`, ...
        source: name of the interface in records, for example `powercap:intel-rapl`.
        range_uj: number of distinct values in microjoules; None if the counter does not wrap. A smaller
            reading then means that it was reset.
        max_watts: power in watts that the component never exceeds; decides when a wrap may have been missed.
        quality: quality of the readings, for records.
        interval_s: seconds between new values, for sources whose new values are worth waiting for; 0 for
            counters that are read at every sample.
    """

    quality: Quality = Quality.MEASURED
    interval_s: float = 0.0
    key: str
    component: str
    source: str
    range_uj: int | None
    max_watts: float

    @abstractmethod
    def read(self) -> int:
        """Return the count in microjoules.

        Raises:
            DeviceError: the counter cannot be read now.
        """

    def dump(self) -> dict[str, float] | None:
        """Return the state that another process needs to continue the count; None if the hardware counts."""
        return None

    def load(self, data: Mapping[str, float]) -> None:
        """Continue the count from the output of `dump`, which must be from the same boot."""
        return

    def close(self) -> None:
        """Release descriptors."""
        return


def is_readable(counter: EnergyCounter) -> bool:
    """Return whether a counter can be read now."""
    try:
        counter.read()
    except DeviceError:
        return False
    return True


class Knob(ABC):
    """One value of the hardware that can be read and written, as text in the knob's own unit.

    Attributes:
        name: what the knob sets, for example `cpufreq.governor`.
        stage: position in the order of writes.
        readable: False if the hardware cannot report the value.
        domain: part of the node that the knob controls, for example `policy0`.
        dependents: keys of knobs that the hardware may change when this knob is written, see `dependents_at`.
    """

    name: ClassVar[str]
    stage: ClassVar[WriteStage]
    readable: ClassVar[bool] = True

    def __init__(self, domain: str, dependents: tuple[str, ...] = ()) -> None:
        self.domain = domain
        self.dependents = dependents

    @property
    def key(self) -> str:
        """Unique name of the knob: name and domain."""
        return f"{self.name}[{self.domain}]"

    @abstractmethod
    def read(self) -> str:
        """Return the current value.

        Raises:
            DeviceError: the value cannot be read.
        """

    @abstractmethod
    def write(self, value: str) -> None:
        """Write the value; the caller reads it back.

        Raises:
            DeviceError: the hardware refused the value.
        """

    def dependents_at(self, current: str) -> tuple[str, ...]:
        """Return the keys of knobs that a write may change as a side effect, given the current value."""
        return self.dependents

    def files(self) -> tuple[Path, ...]:
        """Return the files that a write changes; empty if the knob is written through a library."""
        return ()

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether `actual` equals `requested` within the rounding of the hardware."""
        return requested == actual

    def satisfies(self, requested: str, actual: str) -> bool:
        """Return whether `actual` meets the request, although the driver may have chosen a nearby value."""
        return self.is_equivalent(requested, actual)

    def format_value(self, value: str) -> str:
        """Return the value with its unit, for people."""
        return value


class ThrottleSensor(ABC):
    """Sensor of the time in which a component ran slower than requested because of heat or a power limit.

    Attributes:
        component: `cpu` or `gpu[i]`.
    """

    component: str

    @abstractmethod
    def throttled_s(self, interval_s: float) -> float:
        """Return the number of seconds of the last `interval_s` seconds in which the component was throttled.

        Raises:
            DeviceError: the sensor cannot be read now.
        """
