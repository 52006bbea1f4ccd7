"""The kernel's hwmon class: sensor chips by name, and the numbered channels of a chip.

Other modules interpret the channels. The numbers of the directories hwmonN change between boots, so chips are
ordered by their device paths. Older drivers, among them the ACPI power meter, keep the files `name` and the
attributes in the device's own directory. Source: kernel, Documentation/hwmon/sysfs-interface.rst and
drivers/hwmon/hwmon.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.power_sensor import PowerReading, PowerSensor, boottime_s
from slurm_energy.devices.sysfs import CounterFile, natural_key, read_optional

_CLASS = Path("sys/class/hwmon")


@dataclass(frozen=True, slots=True)
class HwmonChip:
    """One hwmon device.

    Attributes:
        path: /sys/class/hwmon/hwmonN.
        name: name that the driver gives the chip.
        device: resolved path of the device, which is stable between boots.
    """

    path: Path
    name: str
    device: str

    def file(self, attribute: str) -> Path | None:
        """Return the path of the file of an attribute, for example `power1_input`.

        Return None if the chip lacks the attribute.
        """
        for folder in (self.path, self.path / "device"):
            if (folder / attribute).exists():
                return folder / attribute
        return None

    def text(self, attribute: str) -> str:
        """Return the content of an attribute.

        The result is an empty text if the attribute is absent, empty or unreadable.
        """
        path = self.file(attribute)
        return (read_optional(path) if path else None) or ""

    def number(self, attribute: str) -> int | None:
        """Return the integer value of an attribute; None if it is absent, unreadable or not an integer."""
        text = self.text(attribute)
        return int(text) if text.lstrip("-").isdecimal() else None

    def channels(self, quantity: str, item: str) -> list[int]:
        """Return the sorted channel numbers N for which the chip has an attribute `{quantity}N_{item}`.

        For example `channels("energy", "input")` returns [1, 2] for a chip with energy1_input and
        energy2_input.
        """
        pattern = re.compile(rf"{quantity}(\d+)_{item}")
        names: set[str] = set()
        for folder in (self.path, self.path / "device"):
            try:
                names.update(entry.name for entry in folder.iterdir())
            except OSError:
                continue
        return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def find_chips(root: Path, *names: str) -> list[HwmonChip]:
    """Return the hwmon chips that have one of the given names, ordered by the path of their device.

    Args:
        root: directory that contains /sys.
        names: names of chips, for example `power_meter`.
    """
    try:
        entries = list((root / _CLASS).iterdir())
    except OSError:
        return []
    matching = []
    for path in entries:
        name = read_optional(path / "name") or read_optional(path / "device/name") or ""
        if name in names:
            matching.append(HwmonChip(path, name, str(path.resolve())))
    return sorted(matching, key=lambda chip: natural_key(chip.device))


def chip_names(root: Path) -> frozenset[str]:
    """Return the names of all hwmon chips of the node.

    Args:
        root: directory that contains /sys.
    """
    paths = sorted((root / _CLASS).glob("hwmon*"))
    names = (read_optional(path / "name") or read_optional(path / "device/name") for path in paths)
    return frozenset(name for name in names if name)


class HwmonPowerSensor(PowerSensor):
    """Sensor that reads one powerN_input or powerN_average attribute, which contains microwatts.

    The attribute's file stays open between readings.
    """

    def __init__(self, key: str, component: str, source: str, max_watts: float, path: Path) -> None:
        """Create the sensor.

        The arguments are the attributes of `PowerSensor`; `path` is the file of the hwmon attribute.
        """
        self.key = key
        self.component = component
        self.source = source
        self.max_watts = max_watts
        self._file = CounterFile(path)

    def read(self) -> PowerReading:
        """Return the current power.

        Raises:
            DeviceError: the file cannot be read, or the value exceeds the power that the component can draw.
        """
        watts = self._file.read() / 1e6
        if not 0 <= watts <= self.max_watts:
            raise DeviceError(self.key, f"{watts:g} W is not a possible power of this component")
        return PowerReading(boottime_s(), watts)

    def close(self) -> None:
        """Close the file of the attribute."""
        self._file.close()
