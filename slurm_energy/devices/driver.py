"""Base classes of drivers: energy counters, knobs (values that can be set) and throttle sensors.

Each hardware interface implements these classes in a module of its own. An interface that a node lacks adds
nothing to the lists of devices. Callers therefore need not test whether an interface exists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

from slurm_energy.errors import UnavailableError
from slurm_energy.records import Quality


class DeviceError(UnavailableError):
    """Error: a counter or a hardware setting (knob) cannot be read or written.

    `why` is the reason that the driver reports.
    """


class DeviceGoneError(DeviceError):
    """The device does not exist any more.

    A device that appears later at the same path or index may be a different device. Its counters may also
    start from zero.
    """


class WriteStage(IntEnum):
    """Position of a knob (a hardware setting) in the order of writes.

    The knob with the lowest value is written first and restored last.

    GPU persistence mode is written first, because an NVIDIA driver without it may unload and lose the
    limits. A power profile of a GPU is written before the limit and the clock, because it may change both.
    Boost is written before the frequency range, because writing boost may overwrite the range. A RAPL limit
    is enabled last, because it has no effect until it is enabled.
    """

    PERSISTENCE = 10
    GPU_PROFILE = 11
    GPU_LIMIT = 12
    GPU_CLOCK = 13
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
        component: component of an energy record that the counter measures: `cpu`, `dram`, `gpu[0]`, `node`,
            ...
        source: name of the interface in energy records, for example `powercap:intel-rapl`.
        range_uj: energy in microjoules after which the counter wraps. None if the counter does not wrap; a
            reading below the previous one then means that the counter was reset.
        unread_range_uj: energy in microjoules after which the counter loses a wrap of a hardware register,
            because its driver reads the register only when the counter is read. None if nothing is lost.
        max_watts: upper bound of the component's power in watts. This bound determines the minimum time
            between two wraps of the counter.
        quality: whether the readings are measured, modelled or partial.
        interval_s: seconds between new values of the hardware. The counter is not read before a new value is
            due. 0 means that the counter is read at every sample.
    """

    quality: Quality = Quality.MEASURED
    interval_s: float = 0.0
    unread_range_uj: int | None = None
    key: str
    component: str
    source: str
    range_uj: int | None
    max_watts: float

    @abstractmethod
    def read(self) -> int:
        """Return the energy count in microjoules.

        Raises:
            DeviceError: the counter cannot be read now.
        """

    def dump(self) -> dict[str, float] | None:
        """Return the state from which another process can continue the count.

        Return None if the hardware itself keeps the count.
        """
        return None

    def load(self, data: Mapping[str, float]) -> None:
        """Continue the count from a result of `dump`, which another process may have returned.

        Args:
            data: result of `dump` since the last boot of the node.
        """
        return

    def close(self) -> None:
        """Close the counter's file descriptors."""
        return


def is_readable(counter: EnergyCounter) -> bool:
    """Return whether a counter can be read now."""
    try:
        counter.read()
    except DeviceError:
        return False
    return True


class Knob(ABC):
    """One setting of the hardware that can be read and written.

    Values are text in the unit of the knob.

    Attributes:
        name: quantity that the knob sets, for example `cpufreq.governor`.
        stage: position in the order of writes.
        readable: False if the hardware cannot report the value.
        domain: part of the node that the knob controls, for example `policy0`.
        dependents: keys of other knobs that the hardware may change when this knob is written, see
            `dependents_at`.
    """

    name: ClassVar[str]
    stage: ClassVar[WriteStage]
    readable: ClassVar[bool] = True

    def __init__(self, domain: str, dependents: tuple[str, ...] = ()) -> None:
        self.domain = domain
        self.dependents = dependents

    @property
    def key(self) -> str:
        """Unique name of a hardware setting (knob), `NAME[DOMAIN]`.

        An example is `cpufreq.governor[policy0]`.
        """
        return f"{self.name}[{self.domain}]"

    @abstractmethod
    def read(self) -> str:
        """Return the current value of the setting as text, in the setting's own unit.

        Raises:
            DeviceError: the value cannot be read.
        """

    @abstractmethod
    def write(self, value: str) -> None:
        """Write the value. The caller reads the value back, because hardware may round or ignore it.

        Raises:
            DeviceError: the hardware refused the value.
        """

    def dependents_at(self, current: str) -> tuple[str, ...]:
        """Return the keys of the other knobs that may change when this knob is written.

        A knob is the file or call through which a setting is read and written.

        Args:
            current: value of this knob before the write.
        """
        return self.dependents

    def files(self) -> tuple[Path, ...]:
        """Return the files to which `write` writes.

        The result is empty if the knob is written through a vendor's library.
        """
        return ()

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether `actual` equals `requested` within the rounding of the hardware.

        Args:
            requested: value to write.
            actual: value read back.
        """
        return requested == actual

    def satisfies(self, requested: str, actual: str) -> bool:
        """Return whether `actual` fulfils `requested`, even if the driver chose a nearby value.

        Args:
            requested: value that was written.
            actual: value read back.
        """
        return self.is_equivalent(requested, actual)

    def format_value(self, value: str) -> str:
        """Return `value` with its unit, for messages to users."""
        return value


class ThrottleSensor(ABC):
    """Sensor of the time for which heat or a power limit slowed a component down.

    Attributes:
        component: component of an energy record: `cpu` or `gpu[INDEX]`.
    """

    component: str

    @abstractmethod
    def throttled_s(self, interval_s: float) -> float:
        """Return for how many of the last `interval_s` seconds the component was throttled.

        Args:
            interval_s: seconds since the previous call.

        Raises:
            DeviceError: the sensor cannot be read now.
        """


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity of a component, such as a GPU, since the previous reading.

    Attributes:
        utilisation: fraction of time in which the component was busy, 0 to 1; None if unknown.
        work: work per second by kind of work (`compute`, `memory`); empty if unknown. The unit is arbitrary,
            but does not depend on the clock. One step of a program is therefore the same amount of work at
            any clock.
    """

    utilisation: float | None
    work: Mapping[str, float]


class ActivitySensor(ABC):
    """Sensor of the work that a component does.

    Attributes:
        component: component of an energy record, for example `gpu[0]`.
    """

    component: str

    @abstractmethod
    def read(self) -> Activity:
        """Return the activity since the previous call.

        Raises:
            DeviceError: the sensor cannot be read now.
        """
