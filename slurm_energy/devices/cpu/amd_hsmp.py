"""AMD EPYC sockets through the Host System Management Port: socket power and its limit.

There is one hwmon chip `amd_hsmp_hwmon` per socket, with power1_input, power1_cap and power1_cap_max. The
driver takes microwatts and passes whole milliwatts to the firmware. Source: kernel,
drivers/platform/x86/amd/hsmp/hwmon.c and Documentation/arch/x86/amd_hsmp.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurm_energy.devices.driver import Knob, WriteStage
from slurm_energy.devices.hardware import CpuPackage
from slurm_energy.devices.hwmon import HwmonChip, HwmonPowerSensor, find_chips
from slurm_energy.devices.sysfs import read_text, write_text

_NAME = "amd_hsmp_hwmon"
_LIMIT_ROUNDING_UW = 500_000
_DEFAULT_MAX_WATTS = 1000.0
_HEADROOM = 1.5


class HsmpPowerLimit(Knob):
    """Power limit of a socket in microwatts.

    The firmware lowers a limit above its maximum to that maximum.
    """

    name = "hsmp.power_limit"
    stage = WriteStage.RAPL_LIMIT

    def __init__(self, domain: str, path: Path) -> None:
        super().__init__(domain)
        self.path = path

    def files(self) -> tuple[Path, ...]:
        """Return the sysfs file of the power limit, power1_cap."""
        return (self.path,)

    def read(self) -> str:
        """Return the current limit in microwatts, as text."""
        return read_text(self.path)

    def write(self, value: str) -> None:
        """Set the limit to `value` microwatts."""
        write_text(self.path, value)

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether two limits in microwatts differ by no more than the rounding of the firmware."""
        return abs(int(requested) - int(actual)) <= _LIMIT_ROUNDING_UW

    def format_value(self, value: str) -> str:
        """Convert a limit from microwatts to text in watts."""
        return f"{int(value) / 1e6:g} W"


@dataclass(frozen=True, slots=True)
class HsmpDevices:
    """Result of `discover`; all lists are empty on a node without HSMP.

    Attributes:
        sensors: power sensor of each socket, for nodes without an energy counter.
        knobs: for each socket, the hardware setting (knob) that limits its power.
        packages: one processor package per socket. The attribute `limit_domains` of a package names the
            domain of its knob `hsmp.power_limit`.
    """

    sensors: list[HwmonPowerSensor]
    knobs: list[Knob]
    packages: list[CpuPackage]


def discover(root: Path) -> HsmpDevices:
    """Find the sockets of the node. Sockets are numbered in the order of their hwmon devices."""
    devices = HsmpDevices([], [], [])
    for number, chip in enumerate(find_chips(root, _NAME)):
        _add(devices, chip, f"socket{number}")
    return devices


def _add(devices: HsmpDevices, chip: HwmonChip, domain: str) -> None:
    max_watts = _watts(chip, "power1_cap_max")
    if (power := chip.file("power1_input")) is not None:
        bound = max_watts * _HEADROOM if max_watts else _DEFAULT_MAX_WATTS
        devices.sensors.append(HwmonPowerSensor(f"hsmp:{domain}", "cpu", "hsmp:power", bound, power))
    limit = _watts(chip, "power1_cap")
    path = chip.file("power1_cap")
    if limit is not None and path is not None:
        devices.knobs.append(HsmpPowerLimit(domain, path))
    devices.packages.append(
        CpuPackage(
            name=domain,
            limit_domains=(domain,) if limit is not None else (),
            limit_watts=limit,
            max_limit_watts=max_watts,
            min_limit_watts=None,
            interface="hsmp",
        )
    )


def _watts(chip: HwmonChip, attribute: str) -> float | None:
    value = chip.number(attribute)
    return value / 1e6 if value else None
