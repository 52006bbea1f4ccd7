"""What a node has, as plain data for decisions, and the words in which settings are written.

Frequencies are in kHz and clocks in MHz as the drivers count them, powers in watts. No effects here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """A value wanted for one knob: `key` names the knob, `value` is in the knob's own unit.

    An optional one goes along with another and is left out where the hardware has no such knob.
    """

    key: str
    value: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class CpufreqPolicy:
    """One cpufreq policy: CPUs that share a frequency.

    Attributes:
        name: directory name, e.g. `policy0`.
        cpus: logical CPUs that it governs.
        driver: `scaling_driver`.
        governors: what the driver offers.
        preferences: energy_performance_preference values offered; empty where there is none.
        hardware_range_khz: lowest and highest frequency of the hardware.
        bounds_khz: lower and upper bound in force before the job.
        available_khz: frequencies that a table driver can hold, without boost; empty elsewhere.
    """

    name: str
    cpus: tuple[int, ...]
    driver: str
    governors: tuple[str, ...]
    preferences: tuple[str, ...]
    hardware_range_khz: tuple[int, int]
    bounds_khz: tuple[int, int]
    available_khz: tuple[int, ...] = ()

    @property
    def powersave_is_static(self) -> bool:
        """Whether the powersave governor means the lowest frequency.

        In the active modes of intel_pstate and amd-pstate it means that the hardware chooses.
        Source: kernel, Documentation/admin-guide/pm/intel_pstate.rst and amd-pstate.rst.
        """
        return self.driver not in ("intel_pstate", "amd-pstate-epp")


@dataclass(frozen=True, slots=True)
class CpuPackage:
    """A processor package as RAPL sees it.

    Attributes:
        name: zone name, e.g. `package-0`.
        limit_domains: domains of its limit knobs, the memory-mapped twin included; empty if it has no limit.
        interface: what its limits are set through: `powercap` or `hsmp`.
        limit_watts: limit in force before the job; None if unknown.
        max_limit_watts: highest limit that the hardware names (its thermal design power); None if unknown.
        min_limit_watts: lowest limit that the hardware names; None if unknown.
        cpus: logical CPUs in it; empty if not known.
    """

    name: str
    limit_domains: tuple[str, ...]
    limit_watts: float | None
    max_limit_watts: float | None
    min_limit_watts: float | None
    interface: str = "powercap"
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU as its driver library sees it.

    Attributes:
        index: the library's index, which names the component `gpu[index]`.
        minor: number of the device file, by which Slurm counts; None if unknown.
        name: product name.
        limit_watts: power limit in force before the job; None if it has none.
        min_limit_watts, max_limit_watts: bounds of the limit.
        clocks_mhz: lowest and highest graphics clock; None if unknown.
        interface: what its limit is set through: `nvml`, `amdsmi` or `intel_gpu`.
        partitioned: it is divided into instances (MIG), which Slurm counts in place of it.
    """

    index: int
    minor: int | None
    name: str
    limit_watts: float | None
    min_limit_watts: float | None
    max_limit_watts: float | None
    clocks_mhz: tuple[int, int] | None
    interface: str = "nvml"
    partitioned: bool = False


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """The node, for pure decisions.

    Attributes:
        cpu_model: model name from /proc/cpuinfo, empty if unknown.
        cpu_count: logical CPUs that are online.
        boost: boost is a switch of its own and is on.
        max_dram_watts: most that memory may draw where the hardware tells; None if unknown.
        cores: logical CPUs of every core in the order of Slurm's core numbers; empty if not known.
    """

    cpu_model: str
    cpu_count: int
    policies: tuple[CpufreqPolicy, ...] = ()
    packages: tuple[CpuPackage, ...] = ()
    gpus: tuple[GpuInfo, ...] = ()
    max_dram_watts: float | None = None
    boost: bool = False
    cores: tuple[tuple[int, ...], ...] = ()


def governor_setting(policy: str, name: str) -> Setting:
    """Return the setting of a governor."""
    return Setting(f"cpufreq.governor[{policy}]", name)


def epp_setting(policy: str, name: str) -> Setting:
    """Return the setting of an energy_performance_preference."""
    return Setting(f"cpufreq.epp[{policy}]", name)


def frequency_range_setting(policy: str, low_khz: int, high_khz: int) -> Setting:
    """Return the setting of the frequency bounds, in kHz."""
    return Setting(f"cpufreq.frequency[{policy}]", f"{low_khz}-{high_khz}")


def boost_off_setting() -> Setting:
    """Return the setting that forbids frequencies above the base."""
    return Setting("cpufreq.boost[all]", "0")


def parse_range(text: str) -> tuple[int, int]:
    """Read the value of `frequency_range_setting`: (low, high) in the same unit."""
    low, _, high = text.partition("-")
    return int(low), int(high)


def rapl_limit_settings(place: str, watts: float, window_s: float) -> tuple[Setting, Setting, Setting]:
    """Return averaging window, limit and enabling of a RAPL package."""
    return (
        Setting(f"powercap.time_window[{place}]", str(round(window_s * 1e6))),
        Setting(f"powercap.power_limit[{place}]", str(round(watts * 1e6))),
        Setting(f"powercap.enabled[{place}]", "1"),
    )


def package_limit_settings(interface: str, place: str, watts: float, window_s: float) -> tuple[Setting, ...]:
    """Return the settings of a package's limit; `interface` and `place` as `CpuPackage` has them."""
    if interface == "powercap":
        return rapl_limit_settings(place, watts, window_s)
    return (Setting(f"{interface}.power_limit[{place}]", str(round(watts * 1e6))),)


def gpu_limit_settings(index: int, watts: float, interface: str = "nvml") -> tuple[Setting, ...]:
    """Return the settings of a GPU's power limit; NVML also needs persistence mode."""
    if interface != "nvml":
        return (Setting(f"{interface}.power_limit[gpu{index}]", str(round(watts * 1e6))),)
    return (
        Setting(f"nvml.persistence[gpu{index}]", "1"),
        Setting(f"nvml.power_limit[gpu{index}]", str(round(watts * 1e3))),
    )


def gpu_clocks_setting(index: int, low_mhz: int, high_mhz: int) -> Setting:
    """Return the range that a GPU's graphics clock is locked to."""
    return Setting(f"nvml.locked_clocks[gpu{index}]", f"{low_mhz}-{high_mhz}")
