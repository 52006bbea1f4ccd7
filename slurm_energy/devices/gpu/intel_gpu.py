"""Intel GPUs through hwmon (drivers xe and i915): energy and the sustained power limit of a card.

energy1_input counts the energy of the card, energy2_input (xe only) the energy of the package on the card.
power1_max is the sustained limit of the card; power1_max is 0 while the limit is switched off. The hardware
clamps a limit that is out of range without an error. The driver unwraps its 32-bit register only when the
register is read, in units of 2^-14 J. At 1 kW the register wraps after 4.4 minutes. Source: kernel,
Documentation/ABI/testing/sysfs-driver-intel-{xe,i915}-hwmon and drivers/gpu/drm/xe/xe_hwmon.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurm_energy.devices.driver import EnergyCounter, Knob, WriteStage
from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.devices.hwmon import HwmonChip, find_chips
from slurm_energy.devices.sysfs import CounterFile, read_text, write_text

# The chips of single tiles (`i915_gtN`) are part of the card and are excluded.
_NAMES = ("xe", "i915")
_CARD, _PACKAGE = 1, 2
_LIMIT_ROUNDING_UW = 250_000
_DEFAULT_MAX_WATTS = 1000.0
_REGISTER_RANGE_UJ = 2**18 * 1_000_000
"""2^32 units of 2^-14 J."""


class IntelGpuEnergyCounter(EnergyCounter):
    """Energy counter of a card, or of its package if the card has no counter.

    The counter's file stays open between readings.
    """

    range_uj = None
    unread_range_uj = _REGISTER_RANGE_UJ

    def __init__(self, index: int, driver: str, max_watts: float, path: Path) -> None:
        """Create the counter.

        Args:
            index: number of the card among the Intel cards.
            driver: `xe` or `i915`.
            max_watts: upper bound of the card's power.
            path: energyN_input file.
        """
        self.key = f"{driver}:gpu{index}"
        self.component = f"gpu[{index}]"
        self.source = f"hwmon:{driver}"
        self.max_watts = max_watts
        self._file = CounterFile(path)

    def read(self) -> int:
        """Return the energy since the driver was loaded, in microjoules."""
        return self._file.read()

    def close(self) -> None:
        """Close the counter's energyN_input file."""
        self._file.close()


class IntelGpuPowerLimit(Knob):
    """Sustained power limit of a card in microwatts; `0` means that there is no limit."""

    name = "intel_gpu.power_limit"
    stage = WriteStage.GPU_LIMIT

    def __init__(self, index: int, path: Path) -> None:
        super().__init__(f"gpu{index}")
        self.path = path

    def files(self) -> tuple[Path, ...]:
        """Return the sysfs file of the power limit."""
        return (self.path,)

    def read(self) -> str:
        """Return the current limit in microwatts, as text."""
        return read_text(self.path)

    def write(self, value: str) -> None:
        """Set the limit to `value` microwatts."""
        write_text(self.path, value)

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether two limits in microwatts agree within the unit of the register.

        `0` equals only `0`.
        """
        if "0" in (requested, actual):
            return requested == actual
        return abs(int(requested) - int(actual)) <= _LIMIT_ROUNDING_UW

    def format_value(self, value: str) -> str:
        """Convert a limit from microwatts to text in watts; `0` becomes `none`."""
        return "none" if value == "0" else f"{int(value) / 1e6:g} W"


@dataclass(frozen=True, slots=True)
class IntelGpuDevices:
    """Intel GPUs of a node, with their energy counters and hardware settings (knobs).

    All lists are empty on a node without Intel GPUs.
    """

    gpus: list[GpuInfo]
    counters: list[EnergyCounter]
    knobs: list[Knob]


def discover(root: Path) -> IntelGpuDevices:
    """Return the Intel GPUs of the node with their energy counters and power limits.

    The GPUs are numbered in the order of PCI addresses.
    """
    devices = IntelGpuDevices([], [], [])
    for chip in find_chips(root, *_NAMES):
        channels = chip.channels("energy", "input")
        channel = next((number for number in (_CARD, _PACKAGE) if number in channels), None)
        if channel is not None and (path := chip.file(f"energy{channel}_input")) is not None:
            _add(devices, chip, channel, path)
    return devices


def _add(devices: IntelGpuDevices, chip: HwmonChip, channel: int, energy: Path) -> None:
    index = len(devices.gpus)
    rated_uw = chip.number(f"power{channel}_rated_max")
    limit_uw = chip.number(f"power{channel}_max")
    max_watts = rated_uw / 1e6 if rated_uw else None
    devices.gpus.append(
        GpuInfo(
            index=index,
            minor=None,
            name=f"Intel GPU ({chip.name})",
            limit_watts=(limit_uw / 1e6 or max_watts) if limit_uw is not None else None,
            min_limit_watts=None,
            max_limit_watts=max_watts,
            clocks_mhz=None,
            interface="intel_gpu",
        )
    )
    devices.counters.append(
        IntelGpuEnergyCounter(index, chip.name, 2 * max_watts if max_watts else _DEFAULT_MAX_WATTS, energy)
    )
    limit = chip.file(f"power{channel}_max")
    if limit is not None and limit_uw is not None:
        devices.knobs.append(IntelGpuPowerLimit(index, limit))
