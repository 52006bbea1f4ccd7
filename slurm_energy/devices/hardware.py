"""Description of a node's hardware as plain data. Energy policies choose settings from this description.

Frequencies are in kHz and clocks in MHz, as the drivers report them; powers are in watts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpufreqPolicy:
    """One cpufreq policy of the kernel: a group of CPUs that share a frequency.

    Attributes:
        name: name of the policy's directory in sysfs, for example `policy0`.
        cpus: logical CPUs of the group.
        driver: name of the cpufreq driver (`scaling_driver`).
        governors: governors that the driver offers.
        preferences: energy_performance_preference values that the driver offers; empty if it offers none.
        hardware_range_khz: minimum and maximum frequency of the hardware.
        bounds_khz: lower and upper bound of the frequency, as set when the description was made.
        available_khz: frequencies that a driver with a frequency table offers, without boost; empty for other
            drivers.
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
        """Whether the powersave governor keeps the CPUs at the minimum frequency.

        In the active modes of intel_pstate and amd-pstate, the hardware chooses the frequency under the
        powersave governor. The result is then False. Source: kernel,
        Documentation/admin-guide/pm/intel_pstate.rst and amd-pstate.rst.
        """
        return self.driver not in ("intel_pstate", "amd-pstate-epp")


@dataclass(frozen=True, slots=True)
class CpuPackage:
    """A processor package as RAPL or HSMP describes it.

    Attributes:
        name: name of the package's RAPL zone or HSMP socket, for example `package-0` or `socket0`.
        limit_domains: domains of the package's power limit knobs, including the domain of the memory-mapped
            RAPL zone; empty if the package has no limit.
        interface: interface through which the power limit is set: `powercap` or `hsmp`.
        limit_watts: power limit as set when the description was made; None if unknown.
        max_limit_watts: maximum limit that the hardware reports (its thermal design power); None if unknown.
        min_limit_watts: minimum limit that the hardware reports; None if unknown.
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
    """A GPU as its driver describes it.

    Attributes:
        index: index in the library of the vendor; for an Intel card, its position among the Intel cards.
            Energy records name the GPU `gpu[INDEX]`.
        minor: minor number of an NVIDIA GPU's device file; None for other GPUs, or if unknown.
        name: product name.
        limit_watts: power limit as set when the description was made; None if the GPU has no power limit.
        min_limit_watts, max_limit_watts: bounds of the power limit; None if unknown.
        clocks_mhz: minimum and maximum graphics clock; None if unknown.
        interface: interface through which the power limit is set: `nvml`, `amdsmi` or `intel_gpu`.
        partitioned: whether the GPU is divided into MIG instances. Slurm then counts the MIG instances
            instead of the GPU.
        power_profiles: names of the NVIDIA workload power profiles that the GPU offers.
        other_indices: indices of further GPUs of the vendor's library that are counted as part of this GPU.
        known_slurm_numbers: Slurm's numbers of the GPU as Slurm's configuration determines them; None if
            unknown.
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
    power_profiles: tuple[str, ...] = ()
    other_indices: tuple[int, ...] = ()
    known_slurm_numbers: frozenset[int] | None = None

    @property
    def slurm_numbers(self) -> frozenset[int]:
        """Numbers of the GPU in SLURM_JOB_GPUS.

        Slurm counts the GPUs of a node from 0; `slurm.gpu_order` states the order. The number at the end of
        a file's name does not matter: /dev/dri/renderD128 usually has the number 0. If the order is unknown,
        gres.conf is assumed to list the files of NVIDIA GPUs from /dev/nvidia0 on, and other GPUs in the
        order of the vendor's library. Source: Slurm 22.05 to 26.05, src/plugins/gres/common/gres_common.c
        (`gres_device->index`).
        """
        if self.known_slurm_numbers is not None:
            return self.known_slurm_numbers
        return frozenset((self.index if self.minor is None else self.minor, *self.other_indices))


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """The hardware of a node as plain data.

    Attributes:
        cpu_model: model name from /proc/cpuinfo; empty if unknown.
        cpu_count: number of logical CPUs that are online.
        policies: cpufreq policies.
        packages: processor packages.
        gpus: GPUs.
        max_dram_watts: maximum power of all memory in watts; None if unknown.
        boost: True if the node has a switch for boost frequencies and this switch is on.
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
