"""Packages and GPUs of a node whose power a power budget can limit.

Each device has a power limit with a range, a ceiling (the upper bound that the budget sets), and the
hardware settings (knobs) that set the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_energy.control.arbitration import bounded_value
from slurm_energy.control.journal import SettingsJournal
from slurm_energy.devices.discovery import NodeDevices, with_current_limits
from slurm_energy.devices.settings import Setting, gpu_limit_settings, package_limit_settings
from slurm_energy.policies.targets import limit_range

_LIMIT = ".power_limit["
_ENABLED = "powercap.enabled["


@dataclass(frozen=True, slots=True)
class LimitedDevice:
    """A processor package or GPU.

    A knob is the file or call through which one setting of the device is read and written.

    Attributes:
        name: `package-N`, `socketN` or `gpuN`, as in the keys of the device's knobs.
        kind: product name.
        component: component of energy records that contains the device.
        min_watts, max_watts: range of the power limit; the maximum is the limit without jobs and ceilings.
            None if the device has no power limit that can be set.
        interface: interface through which the power limit is set, for example `powercap`.
        domains: domains of the power limit, each with a setting of its own (`limit_keys`); empty if the
            device has no power limit that can be set.
    """

    name: str
    kind: str
    component: str
    min_watts: float | None
    max_watts: float | None
    interface: str
    domains: tuple[str, ...]

    @property
    def limit_keys(self) -> tuple[str, ...]:
        """Keys of the power-limit settings of the device, one for each of its power domains."""
        return tuple(f"{self.interface}{_LIMIT}{domain}]" for domain in self.domains)

    def settings(self, watts: float, window_s: float) -> tuple[Setting, ...]:
        """Return the settings that set a power limit, including the switches on which the limit depends.

        Args:
            watts: the limit in watts. A limit outside the range of the device is changed to the nearest value
                in the range.
            window_s: averaging window in seconds, for interfaces that have one.
        """
        if self.min_watts is None or self.max_watts is None:
            return ()
        watts = min(max(watts, self.min_watts), self.max_watts)
        if self.name.startswith("gpu"):
            return gpu_limit_settings(int(self.name.removeprefix("gpu")), watts, self.interface)
        return tuple(
            setting
            for domain in self.domains
            for setting in package_limit_settings(self.interface, domain, watts, window_s)
        )

    def watts_of(self, text: str) -> float:
        """Convert the stored text of a power limit of this device to watts."""
        return int(text) / (1e3 if self.interface == "nvml" else 1e6)

    def limit_watts(self, values: Mapping[str, str]) -> float | None:
        """Return the power limit in force in watts.

        Return None if the limit is unknown or switched off.

        Args:
            values: values that were read back from the device, by the key of the knob (setting).
        """
        limits = [self.watts_of(text) for key in self.limit_keys if (text := values.get(key)) and int(text)]
        off = any(values.get(f"{_ENABLED}{domain}]") == "0" for domain in self.domains)
        return None if off or len(limits) < len(self.domains) else min(limits, default=None)


def limited_devices(devices: NodeDevices, journal: SettingsJournal) -> tuple[LimitedDevice, ...]:
    """Return the packages and GPUs of a node with the ranges of their power limits.

    The upper end of a range is the limit that applies when no job and no ceiling changes it. A ceiling is
    the upper bound that a power budget sets.

    Args:
        devices: devices of the node.
        journal: original values of the knobs that jobs or ceilings have changed.
    """
    hardware = devices.hardware
    keys = [
        *(f"{p.interface}{_LIMIT}{domain}]" for p in hardware.packages for domain in p.limit_domains),
        *(f"{gpu.interface}{_LIMIT}gpu{gpu.index}]" for gpu in hardware.gpus),
    ]
    originals = {key: journal.entries[key].original for key in keys if key in journal.entries}
    values = devices.read(key for key in keys if key not in originals)
    hardware = with_current_limits(hardware, values | originals)
    limited = []
    for package in hardware.packages:
        part = limit_range(package)
        low, high = (None, None) if part is None else (part.min_watts, part.max_watts)
        domains = () if part is None else package.limit_domains
        identity = package.name, hardware.cpu_model, "cpu"
        limited.append(LimitedDevice(*identity, low, high, interface=package.interface, domains=domains))
    for gpu in hardware.gpus:
        name = f"gpu{gpu.index}"
        has_limit = gpu.limit_watts is not None and f"{gpu.interface}{_LIMIT}{name}]" in devices.knobs
        low, high = (gpu.min_limit_watts or 0.0, gpu.limit_watts) if has_limit else (None, None)
        low = low if low is None or high is None else min(low, high)
        identity, domains = (name, gpu.name, f"gpu[{gpu.index}]"), (name,) if has_limit else ()
        limited.append(LimitedDevice(*identity, low, high, interface=gpu.interface, domains=domains))
    return tuple(limited)


def ceiling_watts(device: LimitedDevice, journal: SettingsJournal) -> float | None:
    """Return the ceiling of a device in watts: the upper bound that a power budget has set.

    The ceiling is read from the journal of settings. None means that the device has no ceiling.
    """
    ceilings = [
        device.watts_of(entry.ceiling)
        for key in device.limit_keys
        if (entry := journal.entries.get(key)) is not None and entry.ceiling is not None
    ]
    return min(ceilings) if ceilings and len(ceilings) == len(device.limit_keys) else None


def confirmed_ceiling_watts(
    device: LimitedDevice, devices: NodeDevices, journal: SettingsJournal, values: Mapping[str, str]
) -> float | None:
    """Return the ceiling (upper bound of a budget) of a device that its hardware is known to hold.

    The hardware may have rounded the ceiling. The result is None if the hardware holds another value.

    Args:
        device: the device.
        devices: devices of the node.
        journal: settings journal, which contains the ceilings.
        values: values by key of the knobs (settings) that were read back.
    """
    watts, limit = ceiling_watts(device, journal), device.limit_watts(values)
    if watts is None or limit is None:
        return None
    for key in device.limit_keys:
        entry, value, knob = journal.entries[key], values.get(key), devices.knobs.get(key)
        if value is None or knob is None or entry.ceiling is None:
            return None
        if not knob.is_equivalent(bounded_value(key, value, entry.ceiling), value):
            return None
    return max(watts, limit)
