"""Catalogue of the supported hardware interfaces.

The interfaces are files in sysfs and procfs, energy counters, and hardware settings (knobs). `senergy
doctor` and docs/interfaces.md use this data. `devices.discovery` opens the devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.devices.hwmon import chip_names


@dataclass(frozen=True, slots=True)
class HardwareInterface:
    """A hardware interface of Linux, of a vendor's library or of a management controller (BMC).

    Attributes:
        name: name in reports.
        paths: glob patterns relative to the root directory. A match shows that Linux exposes the interface.
        chips: names of hwmon chips; the presence of any of these chips also shows that Linux exposes the
            interface.
        sources: values of `source` of the interface's energy counters.
        knobs: first words of the names of the settings (knobs) that the interface offers, for example
            `cpufreq`.
    """

    name: str
    paths: tuple[str, ...] = ()
    chips: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()

    def present(self, root: Path) -> bool:
        """Return whether Linux exposes the interface; always False for an interface over the network.

        Args:
            root: directory that contains sys, proc and dev.
        """
        if any(True for pattern in self.paths for _ in root.glob(pattern)):
            return True
        return not chip_names(root).isdisjoint(self.chips)


INTERFACES = (
    HardwareInterface("cpufreq", paths=("sys/devices/system/cpu/cpufreq/policy*",), knobs=("cpufreq",)),
    HardwareInterface(
        "powercap",
        paths=("sys/class/powercap/intel-rapl*",),
        sources=("powercap:intel-rapl", "powercap:intel-rapl-mmio", "powercap:psys"),
        knobs=("powercap",),
    ),
    HardwareInterface(
        "perf power events", paths=("sys/bus/event_source/devices/power",), sources=("perf:power",)
    ),
    HardwareInterface("hwmon amd_energy", chips=("amd_energy",), sources=("hwmon:amd_energy",)),
    HardwareInterface(
        "hwmon power meter",
        chips=("power_meter",),
        sources=(
            "power_meter:acpi",
            "power_meter:grace-module",
            "power_meter:grace-grace",
            "power_meter:grace-cpu",
            "power_meter:grace-sysio",
        ),
    ),
    HardwareInterface("AMD HSMP", chips=("amd_hsmp_hwmon",), sources=("hsmp:power",), knobs=("hsmp",)),
    HardwareInterface("NVML", paths=("dev/nvidiactl",), sources=("nvml:total_energy",), knobs=("nvml",)),
    HardwareInterface("AMD SMI", paths=("dev/kfd",), sources=("amdsmi:energy",), knobs=("amdsmi",)),
    HardwareInterface(
        "Intel GPU", chips=("i915", "xe"), sources=("hwmon:i915", "hwmon:xe"), knobs=("intel_gpu",)
    ),
    HardwareInterface(
        "Cray pm_counters",
        paths=("sys/cray/pm_counters",),
        sources=("pm_counters:node", "pm_counters:cpu", "pm_counters:dram", "pm_counters:accel"),
    ),
    HardwareInterface("IPMI", paths=("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"), sources=("ipmi:dcmi",)),
    HardwareInterface("Redfish", sources=("redfish:power",)),
    HardwareInterface("memory table", paths=("sys/firmware/dmi/tables/DMI",), sources=("model:dram",)),
)


def is_used(interface: HardwareInterface, sources: Iterable[str], knob_names: Iterable[str]) -> bool:
    """Return whether any counter or setting (knob) in use belongs to a hardware interface.

    Args:
        interface: a hardware interface of the catalogue.
        sources: values of `source` of the counters in use.
        knob_names: names of the knobs in use, for example `cpufreq.governor`.
    """
    families = {name.partition(".")[0] for name in knob_names}
    return not families.isdisjoint(interface.knobs) or not set(sources).isdisjoint(interface.sources)
