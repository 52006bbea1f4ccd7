"""Processors of the node: model name and how many are online. Counts only; power is elsewhere."""

from __future__ import annotations

from pathlib import Path

from slurm_energy.devices.interface import DeviceError, ThrottleSensor
from slurm_energy.devices.sysfs import CounterFile, cpu_list, read_number, read_optional

_CPU = Path("sys/devices/system/cpu")


def cpu_model(root: Path) -> str:
    """Return the model name of /proc/cpuinfo, empty if it has none."""
    text = read_optional(root / "proc/cpuinfo") or ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return ""


def online_cpus(root: Path) -> tuple[int, ...]:
    """Return the logical CPUs that are online, empty if the kernel does not tell."""
    text = read_optional(root / _CPU / "online") or ""
    try:
        return cpu_list(text)
    except ValueError:
        return ()


class ThermalThrottle(ThrottleSensor):
    """Time that processor packages were throttled by heat: package_throttle_total_time_ms, kernel 5.9 on."""

    component = "cpu"

    def __init__(self, files: list[CounterFile]) -> None:
        self._files = files
        self._last_ms = [file.read() for file in files]

    def seconds(self, interval_s: float) -> float:
        """Return the time of the package that was throttled longest."""
        now_ms = [file.read() for file in self._files]
        moved = [now - last for now, last in zip(now_ms, self._last_ms, strict=True)]
        self._last_ms = now_ms
        return min(max(0.0, max(moved) / 1000), interval_s)


def throttle_sensors(root: Path, cpus: tuple[int, ...]) -> list[ThrottleSensor]:
    """Return the thermal sensor of the node's packages; none where the kernel has no such count."""
    files: dict[int, CounterFile] = {}
    for cpu in cpus:
        folder = root / _CPU / f"cpu{cpu}"
        path = folder / "thermal_throttle/package_throttle_total_time_ms"
        if cpu == cpus[0] and not path.exists():
            return []
        package = read_number(folder / "topology/physical_package_id") or 0
        if package not in files and path.exists():
            files[package] = CounterFile(path)
    try:
        return [ThermalThrottle(list(files.values()))] if files else []
    except DeviceError:
        return []
