"""Emulated files in /sys/class/hwmon: ACPI power meters of the node, or of the power rails of NVIDIA Grace.

The module follows drivers/hwmon/acpi_power_meter.c and Documentation/hwmon/acpi_power_meter.rst: microwatts
averaged over `power1_average_interval` milliseconds. `power1_oem_info` is the firmware's label of the meter.
The labels of Grace and the components behind each label are from NVIDIA's Grace Performance Tuning Guide.
The division of a socket's power among its rails is assumed.
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import File, Tree

DEVICES = "/sys/devices/virtual/hwmon"
CLASS = "/sys/class/hwmon"
INTERVAL_S = 1.0
_FIRST_RAIL = 16
_RAIL_INTERVAL_S = 0.05
_CORE_SHARE = 0.75


class AcpiPowerMeter:
    """Mean power of the node over the last complete interval.

    A timer of the emulator calls `sample` at the end of each interval.
    """

    def __init__(self, realtime_model: RealtimeModel) -> None:
        self._realtime_model = realtime_model
        with realtime_model.now() as model:
            self._since_s = model.now_s
            self._energy_joules = model.energy_joules("node")
            self._watts = model.power_watts("node")

    def sample(self) -> None:
        """End an averaging interval.

        The mean power of this interval is shown until the next interval ends.
        """
        with self._realtime_model.now() as model:
            now_s, energy_joules = model.now_s, model.energy_joules("node")
        if now_s > self._since_s:
            self._watts = (energy_joules - self._energy_joules) / (now_s - self._since_s)
            self._since_s, self._energy_joules = now_s, energy_joules

    def microwatts(self) -> int:
        """Return the value of `power1_average`, in microwatts."""
        return round(self._watts * 1e6)


def add_hwmon(tree: Tree, realtime_model: RealtimeModel, meter: AcpiPowerMeter) -> None:
    """Add the profile's power meters to a file tree.

    A single power meter is hwmon0. Several power meters start at hwmon16.
    """
    kind = realtime_model.profile.other.power_meters or "acpi"
    if kind == "acpi":
        _add_meter(tree, "hwmon0", "node", INTERVAL_S, meter.microwatts)
    elif kind == "grace":
        for number, (label, watts) in enumerate(_grace_rails(realtime_model)):
            _add_meter(tree, f"hwmon{_FIRST_RAIL + number}", label, _RAIL_INTERVAL_S, watts)


def _add_meter(tree: Tree, name: str, label: str, interval_s: float, microwatts: Callable[[], int]) -> None:
    base = f"{DEVICES}/{name}"
    tree.text(f"{base}/name", "power_meter")
    tree.add(f"{base}/power1_average", File(lambda: b"%d\n" % microwatts()))
    tree.text(f"{base}/power1_average_interval", str(round(interval_s * 1000)))
    tree.text(f"{base}/power1_is_battery", "0")
    tree.text(f"{base}/power1_accuracy", "99%")
    tree.text(f"{base}/power1_oem_info", label)
    tree.link(f"{CLASS}/{name}", f"../../devices/virtual/hwmon/{name}")
    tree.link(f"{base}/subsystem", "../../../../class/hwmon")


def _grace_rails(realtime_model: RealtimeModel) -> list[tuple[str, Callable[[], int]]]:
    """Return the emulated ACPI power meters of a node with NVIDIA Grace.

    Each entry is (label of the meter, function that returns the power in microwatts). The meter `Module`
    includes the power of the meter `Grace`. `Grace` includes the power of all other rails.
    """
    profile = realtime_model.profile
    meters: list[tuple[str, Callable[[], int]]] = []
    for socket in range(profile.cpu.packages):
        cpu, dram = (f"cpu[{socket}]", 1.0), (f"dram[{socket}]", 1.0)
        gpus = range(socket, profile.gpu_count, profile.cpu.packages)
        rails = {
            "Grace": (cpu, dram),
            "CPU": ((cpu[0], _CORE_SHARE),),
            "SysIO": ((cpu[0], 1 - _CORE_SHARE),),
            "Module": (cpu, dram, *((f"gpu[{index}]", 1.0) for index in gpus)),
        }
        for rail, parts in rails.items():
            meters.append((f"{rail} Power Socket {socket}", _sum_of(realtime_model, parts)))
    return meters


def _sum_of(realtime_model: RealtimeModel, parts: tuple[tuple[str, float], ...]) -> Callable[[], int]:
    def microwatts() -> int:
        with realtime_model.now() as model:
            return round(sum(model.power_watts(part) * share for part, share in parts) * 1e6)

    return microwatts
