"""Hardware profile of an emulated node: frozen dataclasses.

`profile_file` reads profiles from files, and `node` contains the physics.
"""

from __future__ import annotations

from dataclasses import dataclass

CPUFREQ_DRIVERS = (
    "acpi-cpufreq",
    "intel_pstate",
    "intel_cpufreq",
    "amd-pstate",
    "amd-pstate-epp",
    "cppc_cpufreq",
)
ACTIVE_DRIVERS = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers whose firmware selects the frequency: governors `performance` and `powersave`, and an EPP."""
GENERIC_GOVERNORS = ("conservative", "ondemand", "userspace", "powersave", "performance", "schedutil")
ACTIVE_GOVERNORS = ("performance", "powersave")


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """One cache as sysfs describes it.

    Attributes:
        level: 1, 2 or 3.
        kind: `Data`, `Instruction` or `Unified`.
        size_kib: size of one instance in KiB.
        ways: associativity.
        shared_cores: physical cores that share one instance.
    """

    level: int
    kind: str
    size_kib: int
    ways: int
    shared_cores: int


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """Identity, topology and power coefficients of the CPU packages. All packages are of the same kind.

    Logical CPUs are numbered as by Linux: first one thread of every core, package by package, then the
    second threads in the same order.

    Attributes:
        vendor: `GenuineIntel` or `AuthenticAMD`.
        turbo_bins: pairs (active cores of a package, maximum kHz) in ascending order of cores.
        flops_per_cycle: peak single-precision operations per core and cycle.
        core_bytes_per_s: memory bandwidth that one core can use at `max_khz`.
        core_memory_cycles_share: share of a core's memory latency at `max_khz` that consists of core cycles.
        package_bytes_per_s: sustained memory bandwidth of one package.
        idle_watts: power of a package with every core in deep sleep.
        awake_watts: additional power of a package while a core is busy (uncore, mesh and I/O die are awake).
        core_leakage_watts: static power of one busy core at `voltage_max`; scales with V squared.
        core_dynamic_watts: dynamic power of one core at `max_khz`, `voltage_max` and activity 1.
        uncore_joules_per_byte: package energy of moving one byte to or from memory.
        voltage_floor: volts up to `voltage_knee_khz`. Above this frequency, the voltage rises linearly to
            `voltage_max` at `max_khz`.
        system_cpus: number of CPUs that daemons and Linux keep busy at all times, distributed
            evenly. The power of this work is part of `idle_watts`.
    """

    vendor: str
    family: int
    model: int
    stepping: int
    model_name: str
    microcode: str
    flags: str
    address_bits: str
    packages: int
    cores_per_package: int
    threads_per_core: int
    numa_nodes: int
    caches: tuple[CacheLevel, ...]
    turbo_bins: tuple[tuple[int, int], ...]
    flops_per_cycle: float
    core_bytes_per_s: float
    core_memory_cycles_share: float
    package_bytes_per_s: float
    tdp_watts: float
    idle_watts: float
    awake_watts: float
    core_leakage_watts: float
    core_dynamic_watts: float
    uncore_joules_per_byte: float
    voltage_floor: float
    voltage_max: float
    voltage_knee_khz: int
    system_cpus: float = 0.001

    @property
    def cores(self) -> int:
        """Number of physical cores of the node."""
        return self.packages * self.cores_per_package

    @property
    def cpus(self) -> int:
        """Number of logical CPUs of the node."""
        return self.cores * self.threads_per_core

    def core_of(self, cpu: int) -> int:
        """Return the node-wide core number of a logical CPU."""
        return cpu % self.cores

    def package_of(self, cpu: int) -> int:
        """Return the package number of a logical CPU."""
        return cpu % self.cores // self.cores_per_package

    def siblings(self, cpu: int) -> tuple[int, ...]:
        """Return the logical CPUs (hardware threads) of the core to which `cpu` belongs.

        They are in ascending order and include `cpu` itself.
        """
        return tuple(range(cpu % self.cores, self.cpus, self.cores))

    def package_cpus(self, package: int) -> tuple[int, ...]:
        """Return the logical CPUs of a package in rising order."""
        return tuple(cpu for cpu in range(self.cpus) if self.package_of(cpu) == package)

    def numa_node_of(self, cpu: int) -> int:
        """Return the NUMA node of a logical CPU.

        The cores are divided evenly among the NUMA nodes, in ascending order.
        """
        return self.core_of(cpu) * self.numa_nodes // self.cores


@dataclass(frozen=True, slots=True)
class CpufreqProfile:
    """Properties of the cpufreq driver. All frequencies are in kHz.

    Attributes:
        driver: one of `CPUFREQ_DRIVERS`.
        available_khz: descending frequency table of acpi-cpufreq; empty for other drivers.
        cpuinfo_max_khz: value of `cpuinfo_max_freq`. With acpi-cpufreq, it is the first entry of the table.
        epp: default energy performance preference; None if the driver has none.
    """

    driver: str
    min_khz: int
    base_khz: int
    max_khz: int
    cpuinfo_max_khz: int
    available_khz: tuple[int, ...]
    governor: str
    epp: str | None
    transition_latency_ns: int

    @property
    def governors(self) -> tuple[str, ...]:
        """Governors that the driver accepts."""
        return ACTIVE_GOVERNORS if self.driver in ACTIVE_DRIVERS else GENERIC_GOVERNORS


@dataclass(frozen=True, slots=True)
class Constraint:
    """One power limit that RAPL offers for a CPU package of an emulated node.

    Attributes:
        name: `long_term` or `short_term`.
        limit_watts: limit after power-on.
        window_s: length in seconds of the time window over which the limited power is averaged, after
            power-on.
        max_watts: value of `constraint_N_max_power_uw` in watts.
        enabled: whether the limit is in force after power-on.
    """

    name: str
    limit_watts: float
    window_s: float
    max_watts: float
    enabled: bool


@dataclass(frozen=True, slots=True)
class RaplProfile:
    """RAPL units and domains of a node.

    Attributes:
        energy_unit_exponent: one count of the package counter is 2**-exponent joules.
        dram_energy_unit_exponent: one count of the DRAM counter is 2**-exponent joules; None if there is
            no DRAM domain.
        power_unit_exponent: limits are multiples of 2**-exponent watts.
        time_unit_exponent: time windows are multiples of 2**-exponent seconds (times 2^Y (1+Z/4)).
        constraints: limits of each package; empty where the vendor provides energy counters only (AMD).
        core: whether a `core` zone exists below each package.
        psys: whether a `psys` zone exists.
        mmio: whether the control type `intel-rapl-mmio` provides the packages a second time.
        hsmp_max_watts: maximum socket limit of AMD's host system management port; None if the node has no
            port of this kind.
        dies: number of dies of a package, each of which has a zone; None for one zone per package.
        amd_energy: whether Linux provides AMD's counters through hwmon's amd_energy instead of powercap.
    """

    energy_unit_exponent: int
    dram_energy_unit_exponent: int | None
    power_unit_exponent: int
    time_unit_exponent: int
    constraints: tuple[Constraint, ...]
    core: bool
    psys: bool
    mmio: bool
    hsmp_max_watts: float | None = None
    dies: int | None = None
    amd_energy: bool | None = None


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Main memory of the node.

    Attributes:
        total_mb: size of the memory in MB.
        dimms: number of DIMMs.
        dimm_mb: size of one DIMM in MB.
        kind: memory type, for example `DDR5`.
        speed_mts: speed in megatransfers per second.
        idle_watts: idle power of the DRAM of one package.
        joules_per_byte: DRAM energy of one byte read or written.
        dmi: whether the firmware's DMI table lists the DIMMs, so that their power can be modelled.
    """

    total_mb: int
    dimms: int
    dimm_mb: int
    kind: str
    speed_mts: int
    idle_watts: float
    joules_per_byte: float
    dmi: bool | None = None


@dataclass(frozen=True, slots=True)
class ResctrlProfile:
    """Linux's resctrl file system: monitoring of memory traffic and core energy by task.

    Attributes:
        num_rmids: number of monitoring ids (RMIDs). The root group uses one id.
        core_energy_rmids: number of monitoring ids for the energy of cores; 0 means that this energy is not
            monitored.
        mounted: whether the file system is mounted.
        limbo_s: time for which the monitoring id of a removed monitoring group cannot be used again.
        closids: number of resctrl control groups, including the root group.
    """

    num_rmids: int
    core_energy_rmids: int = 0
    mounted: bool = True
    limbo_s: float = 0.0
    closids: int = 16


@dataclass(frozen=True, slots=True)
class PowerProfile:
    """A workload power profile of the GPUs, and the bounds that the firmware applies while enforcing it.

    Attributes:
        number: NVML's number of the profile.
        priority: priority number. Of profiles that exclude each other, the profile with the lowest number
            is enforced.
        conflicts: numbers of the profiles that are not enforced together with this profile.
        limit_watts: upper bound of the power limit; None for no bound.
        max_graphics_mhz: upper bound of the graphics clock; None for no bound.
    """

    number: int
    priority: int
    conflicts: tuple[int, ...] = ()
    limit_watts: float | None = None
    max_graphics_mhz: int | None = None


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """The GPUs of the node. All GPUs are of the same kind.

    Attributes:
        uuid_seed: text from which the UUIDs are derived, together with node name and index.
        graphics_clocks_mhz: supported graphics clocks, descending.
        memory_clocks_mhz: supported memory clocks, descending.
        flops_per_s: peak operation rate of compute-bound kernels at the maximum clock.
        bytes_per_s: sustained memory bandwidth at the maximum memory clock.
        bandwidth_knee_mhz: graphics clock below which the bandwidth is proportional to the clock.
        idle_watts: idle power at the maximum memory clock.
        awake_watts: additional power while a kernel runs (clock tree, leakage), at `voltage_max`; scales
            with V squared.
        dynamic_watts: dynamic power at the maximum clock, `voltage_max` and activity 1.
        joules_per_byte: memory energy per byte.
        host_watts: package power of the host for feeding one busy GPU.
        power_profiles: workload power profiles, at most 32.
    """

    name: str
    count: int
    uuid_seed: str
    arch: str
    compute_capability: tuple[int, int]
    driver_version: str
    cuda_version: str
    pci_device_id: int
    memory_mb: int
    min_limit_watts: float
    max_limit_watts: float
    default_limit_watts: float
    graphics_clocks_mhz: tuple[int, ...]
    memory_clocks_mhz: tuple[int, ...]
    idle_graphics_mhz: int
    flops_per_s: float
    bytes_per_s: float
    bandwidth_knee_mhz: float
    idle_watts: float
    awake_watts: float
    dynamic_watts: float
    joules_per_byte: float
    voltage_floor: float
    voltage_max: float
    voltage_knee_mhz: float
    host_watts: float
    power_profiles: tuple[PowerProfile, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherProfile:
    """Power of the parts of an emulated node other than CPUs, memory and GPUs.

    These parts are fans, board, disks, network, and the losses of the power supply.

    Attributes:
        base_watts: constant part of their power.
        loss_share: losses of the power supply and power of the fans, as a fraction of the power of CPUs,
            DRAM and GPUs.
        power_meters: ACPI power meters of the node. `acpi` or None means one power meter for the node.
            `grace` means the power meters of NVIDIA Grace, which differ by their labels. `none` means no
            power meter.
    """

    base_watts: float
    loss_share: float
    power_meters: str | None = None


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """Hardware description of one type of node.

    `gpu` is None for a node without GPUs. `resctrl` is None for a processor or kernel without monitoring by
    task.
    """

    name: str
    description: str
    cpu: CpuProfile
    cpufreq: CpufreqProfile
    rapl: RaplProfile
    memory: MemoryProfile
    gpu: GpuProfile | None
    other: OtherProfile
    resctrl: ResctrlProfile | None = None

    @property
    def gpu_count(self) -> int:
        """Number of GPUs of the node."""
        return self.gpu.count if self.gpu else 0
