"""The kernel's hwmon class: chips by name, and their channels. What a channel means is decided elsewhere.

hwmonN numbers change between boots, so chips are ordered by their device. Older drivers (the ACPI power
meter among them) keep name and attributes in the device's own directory. Source: kernel,
Documentation/hwmon/sysfs-interface.rst and drivers/hwmon/hwmon.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.power_sensor import PowerReading, PowerSensor, boottime_s
from slurm_energy.devices.sysfs import CounterFile, read_optional

_CLASS = Path("sys/class/hwmon")


@dataclass(frozen=True, slots=True)
class HwmonChip:
    """One hwmon device.

    Attributes:
        path: /sys/class/hwmon/hwmonN.
        name: what the driver calls it.
        device: where it really is, which is stable between boots.
    """

    path: Path
    name: str
    device: str

    def file(self, attribute: str) -> Path | None:
        """Return an attribute's file, or None if the chip has none."""
        for folder in (self.path, self.path / "device"):
            if (folder / attribute).exists():
                return folder / attribute
        return None

    def text(self, attribute: str) -> str:
        """Return an attribute's text, empty if it is absent, empty or unreadable."""
        path = self.file(attribute)
        return (read_optional(path) if path else None) or ""

    def number(self, attribute: str) -> int | None:
        """Return an attribute's whole number, or None if there is none."""
        text = self.text(attribute)
        return int(text) if text.lstrip("-").isdecimal() else None

    def channels(self, kind: str, item: str) -> list[int]:
        """Return the channel numbers that have an item, e.g. `channels("energy", "input")`."""
        pattern = re.compile(rf"{kind}(\d+)_{item}")
        names: set[str] = set()
        for folder in (self.path, self.path / "device"):
            try:
                names.update(entry.name for entry in folder.iterdir())
            except OSError:
                continue
        return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def find_chips(root: Path, *names: str) -> list[HwmonChip]:
    """Return the chips of these names, ordered by device.

    Args:
        root: where /sys is found.
        names: values of `name` that are wanted.
    """
    try:
        entries = list((root / _CLASS).iterdir())
    except OSError:
        return []
    found = []
    for path in entries:
        name = read_optional(path / "name") or read_optional(path / "device/name") or ""
        if name in names:
            found.append(HwmonChip(path, name, str(path.resolve())))
    return sorted(found, key=lambda chip: natural_key(chip.device))


def chip_names(root: Path) -> frozenset[str]:
    """Return the names of all chips below `root`."""
    paths = sorted((root / _CLASS).glob("hwmon*"))
    names = (read_optional(path / "name") or read_optional(path / "device/name") for path in paths)
    return frozenset(name for name in names if name)


def natural_key(text: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in a text by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


class HwmonPowerSensor(PowerSensor):
    """One powerN_input or powerN_average in microwatts, kept open."""

    def __init__(self, key: str, component: str, source: str, max_watts: float, path: Path) -> None:
        """Describe the gauge, see `PowerSensor`; `path` is the attribute's file."""
        self.key = key
        self.component = component
        self.source = source
        self.max_watts = max_watts
        self._file = CounterFile(path)

    def read(self) -> PowerReading:
        """Return the present power.

        Raises:
            DeviceError: not readable, or more than the part can draw.
        """
        watts = self._file.read() / 1e6
        if not 0 <= watts <= self.max_watts:
            raise DeviceError(self.key, f"{watts:g} W is not a power of this part")
        return PowerReading(boottime_s(), watts)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
