"""RAPL through the kernel's powercap tree: energy counters and power limits of packages and DRAM.

Zones are identified by the content of their file `name`, never by number or order. Source: kernel,
Documentation/power/powercap/powercap.rst and drivers/powercap/intel_rapl_common.c.

Range of a counter: the file `max_energy_range_uj` states the maximum value of a 32-bit register, converted
to microjoules (`get_max_energy_counter`). The counter wraps after 2^32 register units, which is one register
unit more than this maximum.

AMD processors have one counter per socket. Older kernels show this counter once per die.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.devices.driver import DeviceError, EnergyCounter, Knob, WriteStage
from slurm_energy.devices.hardware import CpuPackage
from slurm_energy.devices.sysfs import (
    CounterFile,
    natural_key,
    read_number,
    read_optional,
    read_text,
    write_text,
)

_CLASS = Path("sys/class/powercap")
_ZONE = re.compile(r"(?P<provider>intel-rapl(?:-mmio)?)(?P<parent>(?::[0-9a-f]+)*):[0-9a-f]+")
_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")
_PLATFORM = re.compile(r"psys(-\d+)?")
_REGISTER_VALUES = 2**32
_LIMIT_ROUNDING_UW = 250_000
_WINDOW_ROUNDING = 1.3
_HEADROOM = 1.5
_DEFAULT_MAX_WATTS = {"cpu": 1000.0, "dram": 250.0, "node": 30_000.0}


@dataclass(frozen=True, slots=True)
class RaplZone:
    """One RAPL zone: a part of the processor or platform whose energy the kernel reports.

    Attributes:
        path: directory of the zone.
        provider: driver that provides the zone: `intel-rapl` or `intel-rapl-mmio`.
        name: content of the file `name`, for example `package-0` or `dram`.
        package: for a zone inside a package, the name of that package; empty for other zones.
    """

    path: Path
    provider: str
    name: str
    package: str

    @property
    def label(self) -> str:
        """Name that is unique among the zones of a provider, for example `package-0` or `dram@package-0`."""
        return self.name if not self.package else f"{self.name}@{self.package}"


class RaplEnergyCounter(CounterFile, EnergyCounter):
    """Energy counter of a zone. The file energy_uj stays open between readings."""

    def __init__(self, zone: RaplZone, component: str) -> None:
        super().__init__(zone.path / "energy_uj")
        self.key = f"powercap:{zone.label}"
        self.component = component
        self.source = "powercap:psys" if component == "node" else f"powercap:{zone.provider}"
        highest = read_number(zone.path / "max_energy_range_uj") or 0
        self.range_uj = counter_range_uj(highest) if highest > 0 else None
        self.max_watts = _zone_max_watts(zone, component)


def counter_range_uj(highest_uj: int) -> int:
    """Return the energy in microjoules after which an energy counter wraps.

    Args:
        highest_uj: the zone's `max_energy_range_uj`.
    """
    return highest_uj + max(1, round(highest_uj / (_REGISTER_VALUES - 1)))


class _NumberKnob(Knob):
    def __init__(self, domain: str, path: Path) -> None:
        super().__init__(domain)
        self.path = path

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def read(self) -> str:
        text = read_text(self.path)
        if not text.isdecimal():
            raise DeviceError(str(self.path), f"'{text}' is not a number")
        return text

    def write(self, value: str) -> None:
        write_text(self.path, value)


class RaplPowerLimit(_NumberKnob):
    """Long-term power limit of a package in microwatts.

    The unit of the hardware register is typically 1/8 W.
    """

    name = "powercap.power_limit"
    stage = WriteStage.RAPL_LIMIT

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether two limits in microwatts are equal up to one unit of the hardware register."""
        return abs(int(requested) - int(actual)) <= _LIMIT_ROUNDING_UW

    def format_value(self, value: str) -> str:
        """Convert a limit from microwatts to text in watts."""
        return f"{int(value) / 1e6:g} W"


class RaplTimeWindow(_NumberKnob):
    """Averaging window of the long-term power limit of a RAPL zone, in microseconds.

    The register rounds the window to 2^Y (1 + Z/4) hardware time units.
    """

    name = "powercap.time_window"
    stage = WriteStage.RAPL_WINDOW

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether two averaging windows in microseconds agree within the rounding of the register."""
        low, high = sorted((int(requested), int(actual)))
        return low == high or (low > 0 and high / low <= _WINDOW_ROUNDING)

    def format_value(self, value: str) -> str:
        """Convert the averaging window of a RAPL power limit from microseconds to text in seconds."""
        return f"{int(value) / 1e6:g} s"


class RaplEnable(_NumberKnob):
    """Switch that enables (`1`) or disables (`0`) the power limits of a zone."""

    name = "powercap.enabled"
    stage = WriteStage.RAPL_ENABLE


@dataclass(frozen=True, slots=True)
class PowercapDevices:
    """Result of `discover`; all lists are empty on a node without RAPL.

    Attributes:
        counters: counters of packages and memory; no counter includes the energy of another one.
        platform: counters of the whole node (psys), which include packages and memory.
        knobs: power limits, averaging windows and enable switches.
        packages: packages with their limits.
        max_dram_watts: maximum power of all memory in watts; None if unknown.
        notes: peculiarities of this node, one line each.
    """

    counters: list[EnergyCounter]
    platform: list[EnergyCounter]
    knobs: list[Knob]
    packages: list[CpuPackage]
    max_dram_watts: float | None
    notes: list[str]


def discover(root: Path) -> PowercapDevices:
    """Find the RAPL zones of the kernel's powercap interface, and the devices that they provide.

    The result contains energy counters, power limits and packages. A package that also has a memory-mapped
    zone is counted once. The power limit of such a package is set through both zones.
    """
    zones, notes = _without_repeated_dies(_zones(root / _CLASS), is_amd(root))
    counters: dict[str, EnergyCounter] = {}
    knobs: list[Knob] = []
    domains: dict[str, list[str]] = {}
    platform: dict[str, EnergyCounter] = {}
    for zone in zones:
        component = _component(zone)
        if component is None:
            continue
        if component == "node":
            platform.setdefault(zone.label, RaplEnergyCounter(zone, component))
            continue
        counters.setdefault(f"powercap:{zone.label}", RaplEnergyCounter(zone, component))
        if component == "cpu":
            domain = zone.label if zone.provider == "intel-rapl" else f"{zone.label}:mmio"
            limit_knobs = _limit_knobs(zone, domain)
            knobs += limit_knobs
            domains.setdefault(zone.label, [])
            domains[zone.label] += [domain] if limit_knobs else []
    by_label = {zone.label: zone for zone in reversed(zones)}
    packages = [_package(by_label[label], tuple(names)) for label, names in domains.items()]
    # Both providers list the same memory: by_label has one zone for it.
    dram = [_constraint(zone, "max_power_uw") for zone in by_label.values() if _component(zone) == "dram"]
    return PowercapDevices(
        counters=list(counters.values()),
        platform=list(platform.values()),
        knobs=knobs,
        packages=packages,
        max_dram_watts=sum(w for w in dram if w) / 1e6 if dram and all(dram) else None,
        notes=notes,
    )


def is_amd(root: Path) -> bool:
    """Return whether the processor is from AMD, or from Hygon, whose processors have the same design."""
    text = read_optional(root / "proc/cpuinfo") or ""
    return bool(re.search(r"^vendor_id\s*:\s*(AuthenticAMD|HygonGenuine)\s*$", text, re.MULTILINE))


def _without_repeated_dies(zones: list[RaplZone], amd: bool) -> tuple[list[RaplZone], list[str]]:
    """Remove the zones of AMD dies that repeat the energy counter of their socket.

    Args:
        zones: all zones.
        amd: whether the processor is from AMD; otherwise no zone is removed.

    Returns:
        (remaining zones, one note per removed zone).
    """
    distinct: list[RaplZone] = []
    sockets: set[tuple[str, str]] = set()
    repeated: list[str] = []
    for zone in zones:
        socket, die, _ = zone.name.partition("-die-")
        if amd and die and not zone.package:
            if (zone.provider, socket) in sockets:
                repeated.append(zone.name)
                continue
            sockets.add((zone.provider, socket))
        distinct.append(zone)
    names = set(repeated)
    distinct = [zone for zone in distinct if zone.package not in names]
    return distinct, [f"powercap: {name} repeats its socket's counter and is excluded" for name in repeated]


def _zones(folder: Path) -> list[RaplZone]:
    """Return all RAPL zones below a directory.

    Zones of intel-rapl come before those of intel-rapl-mmio. Each of the two lists is sorted by label.
    """
    try:
        entries = {entry.name: entry for entry in folder.iterdir() if _ZONE.fullmatch(entry.name)}
    except OSError:
        return []
    names = {name: read_optional(path / "name") for name, path in entries.items()}
    zones = []
    for name, path in entries.items():
        parent = name.rpartition(":")[0]
        package = (names.get(parent) or "") if parent in entries else ""
        if label := names[name]:
            zones.append(RaplZone(path, name.partition(":")[0], label, package))
    return sorted(zones, key=lambda zone: (zone.provider != "intel-rapl", natural_key(zone.label)))


def _component(zone: RaplZone) -> str | None:
    """Return the component of the node that a RAPL zone measures.

    The result is None for zones inside other zones, such as core and uncore.
    """
    if _PACKAGE.fullmatch(zone.name) and not zone.package:
        return "cpu"
    if _PLATFORM.fullmatch(zone.name) and not zone.package:
        return "node"
    return "dram" if zone.name == "dram" else None


def _long_term(zone: RaplZone) -> str | None:
    """Return the file name prefix of a zone's long-term power limit, such as `constraint_0`.

    Return None if the zone has no long-term limit.
    """
    for index in range(3):
        if read_optional(zone.path / f"constraint_{index}_name") == "long_term":
            return f"constraint_{index}"
    exists = read_number(zone.path / "constraint_0_power_limit_uw") is not None
    return "constraint_0" if exists else None


def _constraint(zone: RaplZone, file: str) -> int | None:
    prefix = _long_term(zone)
    return read_number(zone.path / f"{prefix}_{file}") if prefix else None


def _limit_knobs(zone: RaplZone, domain: str) -> list[Knob]:
    prefix = _long_term(zone)
    if prefix is None:
        return []
    knobs: list[Knob] = [RaplPowerLimit(domain, zone.path / f"{prefix}_power_limit_uw")]
    window, enabled = zone.path / f"{prefix}_time_window_us", zone.path / "enabled"
    if read_number(window) is not None:
        knobs.append(RaplTimeWindow(domain, window))
    if read_number(enabled) is not None:
        knobs.append(RaplEnable(domain, enabled))
    return knobs


def _package(zone: RaplZone, places: tuple[str, ...]) -> CpuPackage:
    limit = _constraint(zone, "power_limit_uw")
    most, least = _constraint(zone, "max_power_uw"), _constraint(zone, "min_power_uw")
    return CpuPackage(
        name=zone.label,
        limit_domains=places,
        limit_watts=limit / 1e6 if limit else None,
        max_limit_watts=most / 1e6 if most else None,
        min_limit_watts=least / 1e6 if least else None,
    )


def _zone_max_watts(zone: RaplZone, component: str) -> float:
    """Return an upper bound of the power of a RAPL zone in watts.

    The bound is the highest power limit or design power that the kernel states for the zone, times a safety
    factor. A default applies if the kernel states neither, or an implausibly high limit: such a limit means
    "unlimited", and the zone may then draw far more than the design power. The default also applies to a
    package without a design power, because its limits in force may be lower than later ones, for example if
    senergyd is restarted during a job with a cap.
    """
    default = _DEFAULT_MAX_WATTS[component]
    design = [read_number(zone.path / f"constraint_{index}_max_power_uw") or 0 for index in range(2)]
    limits = [read_number(zone.path / f"constraint_{index}_power_limit_uw") or 0 for index in range(2)]
    if component == "cpu" and max(design) <= 0:
        return default
    stated = [value / 1e6 * _HEADROOM for value in (*design, *limits) if value > 0]
    return min(default, max(stated, default=default))
