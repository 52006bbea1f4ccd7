"""What every hardware interface looks like from above: counters, knobs, throttle sensors.

Only the shapes live here; one module per interface implements them. An interface that a node lacks
contributes nothing to the lists, so that no caller asks whether a device exists.
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
    """A counter or knob could not be read or written; `why` is the hardware's reason."""


class DeviceGoneError(DeviceError):
    """The device itself is not there now: what comes back at its place may be another one, or start anew."""


class WriteStage(IntEnum):
    """When a knob is written, lowest first; restoring goes the other way.

    GPU persistence comes first because a driver that unloads forgets limits; boost comes before the
    frequency range because writing boost may overwrite it; a RAPL limit counts only once it is enabled.
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
    """A counter of energy that only grows, or wraps.

    Attributes:
        key: unique name, e.g. `powercap:package-0`.
        component: component of a record that it belongs to: `cpu`, `dram`, `gpu[0]`, ...
        source: interface for the record, e.g. `powercap:intel-rapl`.
        range_uj: number of distinct values in microjoules; None if it does not wrap (a smaller
            reading then means that it was reset).
        max_watts: power that the part never exceeds, in watts; decides when wraps may be missed.
        quality: how far the figure can be trusted.
        interval_s: seconds between new values, where that is worth waiting for; 0 to be read every time.
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
            DeviceError: not readable now.
        """

    def dump(self) -> dict[str, float] | None:
        """Return what another process needs to count on; None where the hardware counts."""
        return None

    def load(self, data: Mapping[str, float]) -> None:
        """Count on from the output of `dump`, of the same boot."""
        return

    def close(self) -> None:
        """Give descriptors back."""
        return


class Knob(ABC):
    """One value of the hardware that can be read and set, as text in the knob's own unit.

    Attributes:
        name: what is set, e.g. `cpufreq.governor`.
        stage: position in the order of writing.
        readable: False where the hardware has no way to ask for the value.
        domain: which one, e.g. `policy0`.
        dependents: keys of knobs that the hardware may change when this one is written, see `affected`.
    """

    name: ClassVar[str]
    stage: ClassVar[WriteStage]
    readable: ClassVar[bool] = True

    def __init__(self, domain: str, dependents: tuple[str, ...] = ()) -> None:
        self.domain = domain
        self.dependents = dependents

    @property
    def key(self) -> str:
        """Unique name: name and domain."""
        return f"{self.name}[{self.domain}]"

    @abstractmethod
    def read(self) -> str:
        """Return the value in force.

        Raises:
            DeviceError: not readable.
        """

    @abstractmethod
    def write(self, value: str) -> None:
        """Set the value; the caller reads it back.

        Raises:
            DeviceError: refused.
        """

    def dependents_at(self, current: str) -> tuple[str, ...]:
        """Return keys of knobs that writing may change, given the value now in force."""
        return self.dependents

    def files(self) -> tuple[Path, ...]:
        """Return the files that are written; empty where a library does it."""
        return ()

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether `actual` is `requested` within the hardware's rounding."""
        return requested == actual

    def satisfies(self, requested: str, actual: str) -> bool:
        """Return whether `actual` fulfils `requested`, although the driver may have chosen a near value."""
        return self.is_equivalent(requested, actual)

    def format_value(self, value: str) -> str:
        """Return the value with its unit, for people."""
        return value


class ThrottleSensor(ABC):
    """Tells how long a component ran slower than asked because of heat or a power limit.

    Attributes:
        component: `cpu` or `gpu[i]`.
    """

    component: str

    @abstractmethod
    def throttled_s(self, interval_s: float) -> float:
        """Return how many of the last `interval_s` seconds were throttled.

        Raises:
            DeviceError: not readable now.
        """
