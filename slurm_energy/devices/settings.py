"""Settings: requested values of knobs, and their constructors by kind of hardware.

Frequencies are in kHz and clocks in MHz, as the drivers count them; powers are in watts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """A requested value of a knob: `key` names the knob, `value` is in the knob's own unit.

    An optional setting accompanies another one and is omitted where the hardware has no such knob.
    """

    key: str
    value: str
    optional: bool = False


def governor_setting(policy: str, name: str) -> Setting:
    """Return the setting of a governor."""
    return Setting(f"cpufreq.governor[{policy}]", name)


def epp_setting(policy: str, name: str) -> Setting:
    """Return the setting of an energy_performance_preference."""
    return Setting(f"cpufreq.epp[{policy}]", name)


def frequency_range_setting(policy: str, low_khz: int, high_khz: int) -> Setting:
    """Return the setting of the frequency bounds in kHz."""
    return Setting(f"cpufreq.frequency[{policy}]", f"{low_khz}-{high_khz}")


def boost_off_setting() -> Setting:
    """Return the setting that forbids frequencies above the base frequency."""
    return Setting("cpufreq.boost[all]", "0")


def parse_range(text: str) -> tuple[int, int]:
    """Parse the value of `frequency_range_setting` into (low, high) in the same unit."""
    low, _, high = text.partition("-")
    return int(low), int(high)


def rapl_limit_settings(domain: str, watts: float, window_s: float) -> tuple[Setting, Setting, Setting]:
    """Return the settings of a RAPL package's averaging window, limit and enable switch."""
    return (
        Setting(f"powercap.time_window[{domain}]", str(round(window_s * 1e6))),
        Setting(f"powercap.power_limit[{domain}]", str(round(watts * 1e6))),
        Setting(f"powercap.enabled[{domain}]", "1"),
    )


def package_limit_settings(interface: str, domain: str, watts: float, window_s: float) -> tuple[Setting, ...]:
    """Return the settings of a package's power limit; `interface` and `domain` are those of `CpuPackage`."""
    if interface == "powercap":
        return rapl_limit_settings(domain, watts, window_s)
    return (Setting(f"{interface}.power_limit[{domain}]", str(round(watts * 1e6))),)


def gpu_limit_settings(index: int, watts: float, interface: str = "nvml") -> tuple[Setting, ...]:
    """Return the settings of a GPU's power limit; NVML also needs persistence mode."""
    if interface != "nvml":
        return (Setting(f"{interface}.power_limit[gpu{index}]", str(round(watts * 1e6))),)
    return (
        Setting(f"nvml.persistence[gpu{index}]", "1"),
        Setting(f"nvml.power_limit[gpu{index}]", str(round(watts * 1e3))),
    )


def gpu_clocks_setting(index: int, low_mhz: int, high_mhz: int) -> Setting:
    """Return the setting that locks a GPU's graphics clock to a range."""
    return Setting(f"nvml.locked_clocks[gpu{index}]", f"{low_mhz}-{high_mhz}")
