"""Values that an energy policy requests for hardware settings (knobs) of a node.

The module also has functions that build the values for each kind of hardware. Frequencies are in kHz and
clocks in MHz, as the drivers report them; powers are in watts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that is requested for a knob (setting of the hardware).

    Attributes:
        key: key of the knob, `NAME[DOMAIN]`.
        value: value in the unit of the knob.
        optional: True for a setting that only accompanies another setting. The setting is omitted if the
            hardware has no knob with this key.
    """

    key: str
    value: str
    optional: bool = False


def governor_setting(policy: str, name: str) -> Setting:
    """Return the setting of the governor `name` for the cpufreq policy `policy`, for example `policy0`."""
    return Setting(f"cpufreq.governor[{policy}]", name)


def epp_setting(policy: str, name: str) -> Setting:
    """Return the setting of the energy_performance_preference `name` for the cpufreq policy `policy`."""
    return Setting(f"cpufreq.epp[{policy}]", name)


def frequency_range_setting(policy: str, low_khz: int, high_khz: int) -> Setting:
    """Return the setting for the frequency bounds of the cpufreq policy `policy`, in kHz."""
    return Setting(f"cpufreq.frequency[{policy}]", f"{low_khz}-{high_khz}")


def boost_off_setting() -> Setting:
    """Return the setting that forbids frequencies above the base frequency on all CPUs of the node."""
    return Setting("cpufreq.boost[all]", "0")


def parse_range(text: str) -> tuple[int, int]:
    """Parse `LOW-HIGH`, the value of a frequency range or clock range, into (low, high) in the same unit."""
    low, _, high = text.partition("-")
    return int(low), int(high)


def rapl_limit_settings(domain: str, watts: float, window_s: float) -> tuple[Setting, Setting, Setting]:
    """Return the settings of a RAPL package's averaging window, power limit and enable switch.

    Args:
        domain: domain of the knobs, for example `package-0`.
        watts: power limit.
        window_s: averaging window in seconds.
    """
    return (
        Setting(f"powercap.time_window[{domain}]", str(round(window_s * 1e6)), optional=True),
        Setting(f"powercap.power_limit[{domain}]", str(round(watts * 1e6))),
        Setting(f"powercap.enabled[{domain}]", "1", optional=True),
    )


def package_limit_settings(interface: str, domain: str, watts: float, window_s: float) -> tuple[Setting, ...]:
    """Return the settings of a package's power limit.

    Args:
        interface: `CpuPackage.interface`.
        domain: one of `CpuPackage.limit_domains`.
        watts: power limit.
        window_s: averaging window in seconds; only used by the interface `powercap`.
    """
    if interface == "powercap":
        return rapl_limit_settings(domain, watts, window_s)
    return (Setting(f"{interface}.power_limit[{domain}]", str(round(watts * 1e6))),)


def gpu_limit_settings(index: int, watts: float, interface: str = "nvml") -> tuple[Setting, ...]:
    """Return the settings of a GPU's power limit. For NVML these include persistence mode.

    Args:
        index: index of the GPU.
        watts: power limit.
        interface: `GpuInfo.interface`.
    """
    if interface != "nvml":
        return (Setting(f"{interface}.power_limit[gpu{index}]", str(round(watts * 1e6))),)
    return (
        Setting(f"nvml.persistence[gpu{index}]", "1", optional=True),
        Setting(f"nvml.power_limit[gpu{index}]", str(round(watts * 1e3))),
    )


def gpu_clocks_setting(index: int, low_mhz: int, high_mhz: int) -> Setting:
    """Return the setting that locks the graphics clock of an NVIDIA GPU to a range of MHz."""
    return Setting(f"nvml.locked_clocks[gpu{index}]", f"{low_mhz}-{high_mhz}")


def gpu_power_profile_setting(index: int, name: str) -> Setting:
    """Return the setting that requests the NVIDIA workload power profile `name` and no other profile."""
    return Setting(f"nvml.power_profile[gpu{index}]", name)
