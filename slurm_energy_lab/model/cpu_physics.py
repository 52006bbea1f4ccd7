"""Power and progress of a CPU package and its memory, from core loads and a frequency ceiling.

Pure functions of the profile; equations in docs/lab-physics.md, sections 2 and 3. Power limits and time are
in `package`, the assignment of loads to cores is in `node`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_energy_lab.model.job_integrals import Job
from slurm_energy_lab.model.kernel_run import KernelPart
from slurm_energy_lab.model.kernels import REAL_ACTIVITY, REAL_BYTES_PER_CYCLE, KernelSpec, roofline
from slurm_energy_lab.model.profile import CpuProfile, NodeProfile


@dataclass(frozen=True, slots=True)
class CoreLoad:
    """A group of cores of one package with equal settings and equal load.

    Attributes:
        count: number of cores.
        khz: requested frequency.
        parts: kernel parts that share each of these cores equally.
        real: busy share due to real programs; applies only to cores without kernel parts.
        real_jobs: (job, share) pairs; the shares add up to `real`.
    """

    count: int
    khz: int
    parts: tuple[KernelPart, ...]
    real: float
    real_jobs: tuple[tuple[Job, float], ...] = ()

    @property
    def busy(self) -> float:
        """Busy share of each core."""
        return 1.0 if self.parts else self.real


@dataclass(slots=True)
class CpuDemand:
    """Resources of a package available to one kernel part, the resulting phase time and core activity."""

    cores: float = 0.0
    cycles_per_s: float = 0.0
    bytes_per_s: float = 0.0
    compute_s: float = 0.0
    period_s: float = 0.0
    activity: float = 0.0


@dataclass(frozen=True, slots=True)
class CpuOperatingPoint:
    """Operating point of a package: power, the cores' part of it, memory traffic, phases per second."""

    watts: float
    core_watts: float
    bytes_per_s: float
    rates: dict[KernelPart, float]
    demands: dict[KernelPart, CpuDemand]


class CpuPhysics:
    """Power and progress rates of one package of a profile."""

    def __init__(self, profile: NodeProfile) -> None:
        self.cpu: CpuProfile = profile.cpu
        self.min_khz = profile.cpufreq.min_khz
        self.max_khz = profile.cpufreq.max_khz

    def voltage_square(self, khz: float) -> float:
        """Return (V / V_max)^2. The voltage is constant up to the knee, then linear up to the maximum."""
        cpu = self.cpu
        if khz <= cpu.voltage_knee_khz:
            volts = cpu.voltage_floor
        else:
            part = (khz - cpu.voltage_knee_khz) / (self.max_khz - cpu.voltage_knee_khz)
            volts = cpu.voltage_floor + (cpu.voltage_max - cpu.voltage_floor) * part
        return (volts / cpu.voltage_max) ** 2

    def core_bandwidth(self, khz: float) -> float:
        """Return the memory bandwidth of one core. Part of the memory latency scales with core cycles."""
        share = self.cpu.core_memory_cycles_share
        return self.cpu.core_bytes_per_s / (1.0 - share + share * self.max_khz / khz)

    def turbo_khz(self, active_cores: float) -> int:
        """Return the maximum turbo frequency for a number of active cores."""
        for cores, khz in self.cpu.turbo_bins:
            if active_cores <= cores:
                return khz
        return self.cpu.turbo_bins[-1][1]

    def operate(
        self, loads: Iterable[CoreLoad], ceiling_khz: int, busy_gpus: float, feed_watts: float
    ) -> CpuOperatingPoint:
        """Return power and progress rates of a package.

        Args:
            loads: the busy cores.
            ceiling_khz: maximum frequency of every core.
            busy_gpus: number of GPUs fed by a thread of this package; a busy GPU keeps the package awake.
            feed_watts: package power of feeding these GPUs.
        """
        cpu = self.cpu
        demands: dict[KernelPart, CpuDemand] = {}
        levels = []
        real_bytes_per_s = 0.0
        for load in loads:
            khz = min(load.khz, ceiling_khz)
            levels.append((load, khz))
            if not load.parts:
                real_bytes_per_s += load.count * load.real * REAL_BYTES_PER_CYCLE * khz * 1e3
                continue
            cores = load.count / len(load.parts)
            bandwidth = self.core_bandwidth(khz)
            for part in load.parts:
                demand = demands.setdefault(part, CpuDemand())
                demand.cores += cores
                demand.cycles_per_s += cores * khz * 1e3
                demand.bytes_per_s += cores * bandwidth
        bytes_per_s = real_bytes_per_s + self._share_memory(demands)
        watts = cpu.idle_watts + feed_watts + cpu.uncore_joules_per_byte * bytes_per_s
        watts += cpu.awake_watts * min(1.0, busy_gpus + sum(load.count * load.busy for load, _ in levels))
        cores = sum(load.count * load.busy * self._core_watts(load, khz, demands) for load, khz in levels)
        rates = {part: 1.0 / demand.period_s for part, demand in demands.items()}
        return CpuOperatingPoint(watts + cores, cores, bytes_per_s, rates, demands)

    def _core_watts(self, load: CoreLoad, khz: int, demands: dict[KernelPart, CpuDemand]) -> float:
        """Return static plus dynamic power of one busy core."""
        if load.parts:
            activity = sum(demands[part].activity for part in load.parts) / len(load.parts)
        else:
            activity = REAL_ACTIVITY
        return self.active_watts(activity, khz)

    def active_watts(self, activity: float, khz: float) -> float:
        """Return the power of a core that is busy 100 % of the time."""
        dynamic = self.cpu.core_dynamic_watts * activity * khz / self.max_khz
        return self.voltage_square(khz) * (self.cpu.core_leakage_watts + dynamic)

    def _share_memory(self, demands: dict[KernelPart, CpuDemand]) -> float:
        """Set phase time and activity of every kernel part; return their bytes per second."""
        limit = self.cpu.package_bytes_per_s
        for part, demand in demands.items():
            task = part.task
            demand.compute_s = task.flops / (
                demand.cycles_per_s * self.cpu.flops_per_cycle * task.factors.efficiency
            )
            memory_s = task.bytes / min(limit, demand.bytes_per_s)
            demand.period_s = roofline(demand.compute_s, memory_s, task.overlap)
        wishes = {part: part.task.bytes / demand.period_s for part, demand in demands.items()}
        if sum(wishes.values()) > limit:
            for part, given in fair_shares(wishes, {p: d.cores for p, d in demands.items()}, limit).items():
                if given < wishes[part]:
                    demands[part].period_s = part.task.bytes / given
                    wishes[part] = given
        for part, demand in demands.items():
            factors = part.task.factors
            busy_share = min(1.0, demand.compute_s / demand.period_s)
            demand.activity = factors.stall + (factors.busy - factors.stall) * busy_share
        return sum(wishes.values())

    def full_speed_s(self, spec: KernelSpec) -> float:
        """Return the run time of problem size 1 on all packages at full speed without power limits."""
        cpu = self.cpu
        khz = self.turbo_khz(cpu.cores_per_package)
        bandwidth = min(cpu.package_bytes_per_s, cpu.cores_per_package * self.core_bandwidth(khz))
        total = 0.0
        for phase in spec.phases:
            flops_per_s = cpu.cores_per_package * khz * 1e3 * cpu.flops_per_cycle * phase.cpu.efficiency
            total += roofline(phase.flops / flops_per_s, phase.bytes / bandwidth, phase.overlap)
        return total / cpu.packages


def fair_shares(
    wishes: dict[KernelPart, float], weights: dict[KernelPart, float], limit: float
) -> dict[KernelPart, float]:
    """Divide `limit` in proportion to the weights; shares above a part's wish go to the other parts."""
    given: dict[KernelPart, float] = {}
    open_parts, left = list(wishes), limit
    while open_parts:
        per_weight = left / sum(weights[part] for part in open_parts)
        modest = [part for part in open_parts if wishes[part] <= per_weight * weights[part]]
        if not modest:
            given.update((part, per_weight * weights[part]) for part in open_parts)
            break
        for part in modest:
            given[part] = wishes[part]
            left -= wishes[part]
        open_parts = [part for part in open_parts if part not in given]
    return given
