"""ACPI power meters: the whole node on most servers, sockets and superchip modules on NVIDIA Grace.

Grace has one meter per power rail. The attribute power1_oem_info of the meter names the rail. `Module Power
Socket N` includes `Grace Power Socket N`, the GPU and the GPU's memory. `Grace Power Socket N` includes `CPU
Power Socket N`, `SysIO Power Socket N`, memory and regulators. The power of a rail must never be added to the
power of a rail that includes it. Source: kernel, drivers/hwmon/acpi_power_meter.c and
Documentation/hwmon/acpi_power_meter.rst; NVIDIA Grace Performance Tuning Guide, Power and Thermals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.devices.hwmon import HwmonChip, HwmonPowerSensor, find_chips
from slurm_energy.devices.polled_sensor import PolledPowerSensor
from slurm_energy.devices.power_sensor import PowerSensor

_NAME = "power_meter"
_GRACE = re.compile(r"(Module|Grace|CPU|SysIO) Power Socket (\d+)")
_GRACE_COMPONENTS = {"Module": "node", "Grace": "cpu", "CPU": "cpu", "SysIO": "cpu"}
_MAX_WATTS = {"node": 30_000.0, "cpu": 1000.0}
_MIN_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class AcpiPowerMeters:
    """Result of `discover`; all lists are empty on a node without a power meter.

    Attributes:
        sensors: sensors of source `power_meter:acpi` (the node) or `power_meter:grace-...`.
        notes: one line for each excluded meter.
    """

    sensors: list[PowerSensor]
    notes: list[str]


def discover(root: Path) -> AcpiPowerMeters:
    """Find the power meters of the node.

    If several meters have no known label, all of them are excluded, because it is unknown which one measures
    the whole node.
    """
    meters = AcpiPowerMeters([], [])
    unlabelled: list[tuple[HwmonChip, Path]] = []
    for chip in find_chips(root, _NAME):
        path = chip.file("power1_average")
        if path is None or chip.number("power1_is_battery") == 1:
            continue
        match = _GRACE.fullmatch(chip.text("power1_oem_info"))
        if match is None:
            unlabelled.append((chip, path))
            continue
        rail, socket, component = match[1], match[2], _GRACE_COMPONENTS[match[1]]
        source = f"power_meter:grace-{rail.lower()}"
        meters.sensors.append(
            HwmonPowerSensor(f"{source}{socket}", component, source, _MAX_WATTS[component], path)
        )
    if len(unlabelled) == 1:
        meters.sensors.append(_node_sensor(*unlabelled[0]))
    elif unlabelled:
        meters.notes.append(
            f"power_meter: {len(unlabelled)} meters without a label: which one measures the node is unknown"
        )
    return meters


def _node_sensor(chip: HwmonChip, path: Path) -> PowerSensor:
    """Return a polled sensor that reads the power meter of the whole node.

    A thread polls the meter, because the firmware may query the BMC at each reading.

    Args:
        chip: hwmon chip of the power meter.
        path: path of the meter's file power1_average.
    """
    # The mean of an interval is half an interval old at its end. It is then shown for one more interval,
    # which adds half an interval on average.
    average_s = (chip.number("power1_average_interval") or 0) / 1000
    direct = HwmonPowerSensor("power_meter", "node", "power_meter:acpi", _MAX_WATTS["node"], path)
    interval_s = max(_MIN_INTERVAL_S, average_s)
    return PolledPowerSensor(
        direct.key,
        direct.component,
        direct.source,
        direct.max_watts,
        interval_s,
        lambda: direct.read().watts,
        direct.close,
        lag_s=average_s,
    )
