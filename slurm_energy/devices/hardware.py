"""Description of a node's hardware as plain data, for decisions about settings.

Frequencies are in kHz and clocks in MHz, as the drivers count them; powers are in watts.
"""

from __future__ import annotations

from dataclasses import dataclass


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
