"""Target values of a job's settings on a node, for example frequency bounds and power limits.

Several planning steps add target values or lower them. The settings of the job are then made from the target
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from slurm_energy.devices.hardware import CpuPackage, GpuInfo, NodeHardware
from slurm_energy.devices.settings import (
    Setting,
    boost_off_setting,
    epp_setting,
    frequency_range_setting,
    governor_setting,
    gpu_clocks_setting,
    gpu_limit_settings,
    gpu_power_profile_setting,
    package_limit_settings,
)
from slurm_energy.policies.caps import LimitRange

_MIN_PACKAGE_FRACTION = 0.3
"""Minimum limit of a package as a fraction of its maximum limit, if the hardware states no minimum.

Below this limit the clocks are at their minimum, and a lower limit has no effect.
"""
_BASE_FREQUENCY_TOLERANCE = 1.05


@dataclass(slots=True)
class CpuTarget:
    """Target values of one cpufreq policy. None means that the value is not changed.

    Attributes:
        low_khz: lower frequency bound.
        high_khz: upper frequency bound.
        governor: cpufreq governor.
        preference: energy_performance_preference.
    """

    low_khz: int
    high_khz: int
    governor: str | None = None
    preference: str | None = None


@dataclass(slots=True)
class Targets:
    """Target values of the settings of one job on one node.

    Several planning steps may limit the same part of the node; the lowest limit applies.

    Attributes:
        hardware: the part of the node whose settings the job may change.
        gpus: GPUs of the job.
        cpus: target values by name of the cpufreq policy.
        packages: power limit in watts by name of the package.
        gpu_limits: power limit in watts by index of the GPU.
        clocks: minimum and maximum graphics clock in MHz by index of the GPU.
        power_profiles: name of the workload power profile by index of the GPU.
        no_boost: whether boost frequencies are switched off.
        notes: remarks for the energy record, one line each.
    """

    hardware: NodeHardware
    gpus: Sequence[GpuInfo]
    cpus: dict[str, CpuTarget] = field(init=False)
    packages: dict[str, float] = field(default_factory=dict)
    gpu_limits: dict[int, float] = field(default_factory=dict)
    clocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    power_profiles: dict[int, str] = field(default_factory=dict)
    no_boost: bool = False
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Set the target frequency bounds of each CPU to the present bounds."""
        self.cpus = {policy.name: CpuTarget(*policy.bounds_khz) for policy in self.hardware.policies}

    def bound_frequency(self, max_frequency_mhz: float) -> None:
        """Set the upper bound of the CPU frequency.

        If the bound excludes only boost frequencies, boost is also switched off. This is necessary with a
        driver that has a frequency table: the highest entry of the table represents all boost frequencies, so
        that a bound between boost frequencies cannot be enforced.
        """
        for policy in self.hardware.policies:
            target = self.cpus[policy.name]
            bound_khz = max(policy.hardware_range_khz[0], round(max_frequency_mhz * 1000))
            base_khz = max(policy.available_khz, default=0)
            if (
                self.hardware.boost
                and policy.driver == "acpi-cpufreq"
                and base_khz <= bound_khz <= base_khz * _BASE_FREQUENCY_TOLERANCE
            ):
                self.no_boost = True
            target.high_khz = min(target.high_khz, bound_khz)
            target.low_khz = min(target.low_khz, target.high_khz)

    def set_preference(self, name: str) -> None:
        """Set energy_performance_preference `name` on the CPUs whose driver offers this value."""
        for policy in self.hardware.policies:
            if name in policy.preferences:
                self.cpus[policy.name].preference = name

    def cap_package(self, package: CpuPackage, watts: float) -> None:
        """Limit the power of a package. The limit is raised to the package's minimum limit if necessary."""
        part = limit_range(package)
        if part is not None:
            watts = max(watts, part.min_watts)
            self.packages[package.name] = min(watts, self.packages.get(package.name, watts))

    def limit_gpu(self, index: int, watts: float) -> None:
        """Limit the power of the GPU `index`."""
        self.gpu_limits[index] = min(watts, self.gpu_limits.get(index, watts))

    def cap_gpus(self, gpus: Iterable[GpuInfo], cap_watts: float) -> None:
        """Limit the power of each of the GPUs.

        The limit is raised to the GPU's minimum limit if necessary.
        """
        for gpu in gpus:
            if gpu.limit_watts is None:
                self.notes.append(f"GPU {gpu.index} has no power limit")
                continue
            if gpu.min_limit_watts is not None and cap_watts < gpu.min_limit_watts:
                self.notes.append(f"GPU {gpu.index}: the lowest limit is {gpu.min_limit_watts:g} W")
            self.limit_gpu(gpu.index, max(cap_watts, gpu.min_limit_watts or 0.0))

    def bound_gpu_clocks(self, gpus: Iterable[GpuInfo], max_clock_mhz: float) -> None:
        """Lower the upper bound of the graphics clock of GPUs.

        The bound stays within the range of clocks that each GPU supports. A GPU whose clock cannot be
        bounded is mentioned in a note.
        """
        for gpu in gpus:
            if gpu.clocks_mhz is None or gpu.interface != "nvml":
                self.notes.append(f"GPU {gpu.index}: its clock cannot be bounded")
                continue
            low, high = gpu.clocks_mhz
            high = min(high, self.clocks.get(gpu.index, (low, high))[1])
            self.clocks[gpu.index] = (low, max(low, min(high, round(max_clock_mhz))))

    def select_power_profile(self, gpus: Iterable[GpuInfo], name: str) -> None:
        """Request an NVIDIA workload power profile for those GPUs that offer it.

        For other GPUs, a note is added. `name` is the name of the profile.
        """
        for gpu in gpus:
            if name in gpu.power_profiles:
                self.power_profiles[gpu.index] = name
                continue
            offered = ", ".join(gpu.power_profiles) or "none"
            self.notes.append(f"GPU {gpu.index} has no power profile {name}; its profiles: {offered}")

    def gpu_settings(self) -> Iterator[Setting]:
        """Yield the settings that the job's GPUs should get. A power limit is only lowered, never raised."""
        for gpu in self.gpus:
            watts = self.gpu_limits.get(gpu.index)
            if watts is not None and gpu.limit_watts is not None and watts < gpu.limit_watts:
                yield from gpu_limit_settings(gpu.index, watts, gpu.interface)
            if gpu.index in self.clocks:
                yield gpu_clocks_setting(gpu.index, *self.clocks[gpu.index])
            if gpu.index in self.power_profiles:
                yield gpu_power_profile_setting(gpu.index, self.power_profiles[gpu.index])

    def cpu_settings(self, window_s: float) -> Iterator[Setting]:
        """Yield the settings of the job's CPUs and CPU packages.

        A power limit is only yielded if it is lower than the package's limit.

        Args:
            window_s: averaging window of RAPL power limits in seconds.
        """
        if self.no_boost:
            yield boost_off_setting()
        for policy in self.hardware.policies:
            target = self.cpus[policy.name]
            if target.governor is not None:
                yield governor_setting(policy.name, target.governor)
            if target.preference is not None:
                yield epp_setting(policy.name, target.preference)
            if (target.low_khz, target.high_khz) != policy.bounds_khz:
                yield frequency_range_setting(policy.name, target.low_khz, target.high_khz)
        for package in self.hardware.packages:
            watts = self.packages.get(package.name)
            if watts is not None and (package.limit_watts is None or watts < package.limit_watts):
                for domain in package.limit_domains:
                    yield from package_limit_settings(package.interface, domain, watts, window_s)


def limit_range(package: CpuPackage) -> LimitRange | None:
    """Return the range of power limits of a package; None if its power cannot be limited."""
    max_watts = package.limit_watts or package.max_limit_watts
    if not package.limit_domains or max_watts is None:
        return None
    # A limit far above the design power means "none"; the division then starts from the design power.
    max_watts = min(max_watts, package.max_limit_watts) if package.max_limit_watts else max_watts
    min_watts = package.min_limit_watts or _MIN_PACKAGE_FRACTION * max_watts
    return LimitRange(package.name, min(min_watts, max_watts), max_watts)
