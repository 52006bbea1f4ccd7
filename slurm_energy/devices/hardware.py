"""Description of a node's hardware as plain data, and constructors of settings for it.

Frequencies are in kHz and clocks in MHz, as the drivers count them; powers are in watts. Nothing here reads
or writes hardware.
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


@dataclass(frozen=True, slots=True)
class CpufreqPolicy:
    """One cpufreq policy: a group of CPUs that share a frequency.

    Attributes:
        name: name of the directory, for example `policy0`.
        cpus: logical CPUs of the group.
        driver: content of `scaling_driver`.
        governors: governors that the driver offers.
        preferences: energy_performance_preference values that the driver offers; empty if it offers none.
        hardware_range_khz: lowest and highest frequency of the hardware.
        bounds_khz: lower and upper bound of the frequency, as set when the description was made.
        available_khz: frequencies of a table driver, without boost; empty for other drivers.
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
        """Whether the powersave governor holds the lowest frequency.

        In the active modes of intel_pstate and amd-pstate the hardware chooses the frequency under that
        governor. Source: kernel, Documentation/admin-guide/pm/intel_pstate.rst and amd-pstate.rst.
        """
        return self.driver not in ("intel_pstate", "amd-pstate-epp")


@dataclass(frozen=True, slots=True)
class CpuPackage:
    """A processor package as RAPL or HSMP describes it.

    Attributes:
        name: name of the zone, for example `package-0`.
        limit_domains: domains of its limit knobs, including the memory-mapped twin; empty if it has no limit.
        interface: interface of its limits: `powercap` or `hsmp`.
        limit_watts: power limit as set when the description was made; None if unknown.
        max_limit_watts: highest limit that the hardware names (its thermal design power); None if unknown.
        min_limit_watts: lowest limit that the hardware names; None if unknown.
        cpus: logical CPUs of the package; empty if unknown.
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
    """A GPU as the library of its driver describes it.

    Attributes:
        index: index in the library, which names the component `gpu[index]`.
        minor: number of the device file, which Slurm uses; None if unknown.
        name: product name.
        limit_watts: power limit as set when the description was made; None if the GPU has none.
        min_limit_watts, max_limit_watts: bounds of the limit; None if unknown.
        clocks_mhz: lowest and highest graphics clock; None if unknown.
        interface: interface of its limit: `nvml`, `amdsmi` or `intel_gpu`.
        partitioned: whether it is divided into instances (MIG); Slurm then counts instances instead of GPUs.
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
    """The hardware of a node, for pure decisions.

    Attributes:
        cpu_model: model name from /proc/cpuinfo; empty if unknown.
        cpu_count: number of logical CPUs that are online.
        boost: whether boost has a switch of its own that is on.
        max_dram_watts: highest power of memory that the hardware names; None if unknown.
        cores: logical CPUs of each core in the order of Slurm's core numbers; empty if unknown.
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
