"""Power and progress of a CPU package and its memory.

Power and progress depend on the loads of the cores and on the maximum frequency.

The module keeps no state. The equations are in docs/lab-physics.md, sections 2 and 3. The module `package`
handles power limits and time. The module `node` assigns loads to cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        parts: work of compute kernels. All listed work runs on each of these cores and shares the core
            equally.
        real: share of each core's time that programs outside the model use, 0 to 1. The share applies only
            to cores without work of compute kernels.
        real_jobs: job and share of time of each program outside the model. The shares add up to `real`.
    """

    count: int
    khz: int
    parts: tuple[KernelPart, ...]
    real: float
    real_jobs: tuple[tuple[Job, float], ...] = ()

    @property
    def busy(self) -> float:
        """Share of time for which each core is busy, 0 to 1."""
        return 1.0 if self.parts else self.real


@dataclass(frozen=True, slots=True)
class FedGpu:
    """A busy GPU that a thread on a CPU package feeds with work.

    Attributes:
        parts: kernel parts on the GPU.
        khz: frequency that the core of the thread requests.
        watts: power that the package uses to feed the GPU at the maximum frequency of the thread's core.
    """

    parts: tuple[KernelPart, ...]
    khz: int
    watts: float


@dataclass(slots=True)
class CpuDemand:
    """Resources of a CPU package that one compute kernel uses, and the duration of its phases.

    A compute kernel repeats phases. A phase consists of computation, a serial section and waiting.

    Attributes:
        cores: number of cores. A core that several kernels share counts as a fraction.
        cycles_per_s: cycles per second of these cores.
        bytes_per_s: memory bandwidth of these cores.
        compute_s: seconds that the operations of a phase take, without memory traffic.
        serial_s: seconds of the serial section of a phase, in which one core is busy.
        rest_s: seconds of the serial section and of waiting.
        period_s: seconds of a phase.
        activity: mean switching activity relative to GEMM.
    """

    cores: float = 0.0
    cycles_per_s: float = 0.0
    bytes_per_s: float = 0.0
    compute_s: float = 0.0
    serial_s: float = 0.0
    rest_s: float = 0.0
    period_s: float = 0.0
    activity: float = 0.0


@dataclass(frozen=True, slots=True)
class CpuOperatingPoint:
    """Operating point of an emulated processor package: its power, and the progress of its work.

    A kernel part is the part of an emulated compute kernel that runs on the package. It consists of equal
    phases.

    Attributes:
        watts: power of the package.
        core_watts: part of `watts` that the cores draw.
        bytes_per_s: memory traffic.
        rates: completed phases per second, by kernel part.
        demands: resources that a phase needs, and the time that a phase takes, by kernel part.
    """

    watts: float
    core_watts: float
    bytes_per_s: float
    rates: dict[KernelPart, float]
    demands: dict[KernelPart, CpuDemand]


class CpuPhysics:
    """Power and progress rates of one CPU package as described by a profile."""

    def __init__(self, profile: NodeProfile) -> None:
        self.cpu: CpuProfile = profile.cpu
        self.min_khz = profile.cpufreq.min_khz
        self.max_khz = profile.cpufreq.max_khz

    def voltage_square(self, khz: float) -> float:
        """Return (V / V_max)^2 at a frequency.

        The voltage is constant up to the knee, then linear up to V_max.
        """
        cpu = self.cpu
        if khz <= cpu.voltage_knee_khz:
            volts = cpu.voltage_floor
        else:
            part = (khz - cpu.voltage_knee_khz) / (self.max_khz - cpu.voltage_knee_khz)
            volts = cpu.voltage_floor + (cpu.voltage_max - cpu.voltage_floor) * part
        return (volts / cpu.voltage_max) ** 2

    def core_bandwidth(self, khz: float) -> float:
        """Return the memory bandwidth of one core in bytes per second at a frequency.

        A part of the memory latency is proportional to the duration of a core cycle.
        """
        share = self.cpu.core_memory_cycles_share
        return self.cpu.core_bytes_per_s / (1.0 - share + share * self.max_khz / khz)

    def turbo_khz(self, active_cores: float) -> int:
        """Return the maximum turbo frequency in kHz if a given number of cores in the package is active."""
        for cores, khz in self.cpu.turbo_bins:
            if active_cores <= cores:
                return khz
        return self.cpu.turbo_bins[-1][1]

    def feed_watts(self, gpu: FedGpu, ceiling_khz: int) -> float:
        """Return the power in watts of the thread that feeds a GPU.

        `ceiling_khz` is the maximum frequency of the thread's core.
        """
        khz = min(gpu.khz, ceiling_khz)
        return gpu.watts * self.voltage_square(khz) * khz / self.max_khz

    def operate(
        self, loads: Iterable[CoreLoad], ceiling_khz: int, fed: Sequence[FedGpu] = ()
    ) -> CpuOperatingPoint:
        """Return the power of a processor package and the speed at which it runs compute kernels.

        Args:
            loads: groups of busy cores with equal load and settings.
            ceiling_khz: maximum frequency of every core.
            fed: GPUs to which threads of this package submit work. A busy GPU keeps the package awake.
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
        watts = cpu.idle_watts + cpu.uncore_joules_per_byte * bytes_per_s
        watts += sum(self.feed_watts(gpu, ceiling_khz) for gpu in fed)
        watts += cpu.awake_watts * min(1.0, len(fed) + sum(load.count * load.busy for load, _ in levels))
        cores = sum(load.count * load.busy * self._core_watts(load, khz, demands) for load, khz in levels)
        rates = {part: 1.0 / demand.period_s for part, demand in demands.items()}
        return CpuOperatingPoint(watts + cores, cores, bytes_per_s, rates, demands)

    def _core_watts(self, load: CoreLoad, khz: int, demands: dict[KernelPart, CpuDemand]) -> float:
        """Return the static and dynamic power of one busy core in watts."""
        if load.parts:
            activity = sum(demands[part].activity for part in load.parts) / len(load.parts)
        else:
            activity = REAL_ACTIVITY
        return self.active_watts(activity, khz)

    def active_watts(self, activity: float, khz: float) -> float:
        """Return the power in watts of a core of an emulated CPU that is busy all the time.

        Args:
            activity: switching activity relative to the kernel GEMM (1 for GEMM).
            khz: frequency in kHz.
        """
        dynamic = self.cpu.core_dynamic_watts * activity * khz / self.max_khz
        return self.voltage_square(khz) * (self.cpu.core_leakage_watts + dynamic)

    def _share_memory(self, demands: dict[KernelPart, CpuDemand]) -> float:
        """Compute how fast kernel parts run if they share the memory bandwidth of the package.

        The results are stored in `demands`: the time that each part needs for its current phase, and its
        activity. Return the memory traffic of all parts in bytes per second.
        """
        limit = self.cpu.package_bytes_per_s
        for part, demand in demands.items():
            task = part.task
            demand.compute_s = task.flops / (
                demand.cycles_per_s * self.cpu.flops_per_cycle * task.factors.efficiency
            )
            memory_s = task.bytes / min(limit, demand.bytes_per_s)
            demand.serial_s = task.host_cycles * demand.cores / demand.cycles_per_s
            demand.rest_s = demand.serial_s + task.wait_s
            demand.period_s = demand.rest_s + roofline(demand.compute_s, memory_s, task.overlap)
        wishes = {part: part.task.bytes / demand.period_s for part, demand in demands.items()}
        if sum(wishes.values()) > limit:
            for part, given in fair_shares(wishes, {p: d.cores for p, d in demands.items()}, limit).items():
                if given < wishes[part]:
                    demands[part].period_s = part.task.bytes / given
                    wishes[part] = given
        for part, demand in demands.items():
            factors = part.task.factors
            span_s = max(demand.compute_s, demand.period_s - demand.rest_s)
            compute_share = demand.compute_s / span_s if span_s > 0 else 0.0
            activity = factors.stall + (factors.busy - factors.stall) * compute_share
            serial_s = demand.serial_s / demand.cores
            demand.activity = (activity * span_s + factors.busy * serial_s) / demand.period_s
        return sum(wishes.values())

    def full_speed_s(self, spec: KernelSpec) -> float:
        """Return the seconds that a compute kernel of size 1 takes on all packages without power limits."""
        cpu = self.cpu
        khz = self.turbo_khz(cpu.cores_per_package)
        bandwidth = min(cpu.package_bytes_per_s, cpu.cores_per_package * self.core_bandwidth(khz))
        total = 0.0
        for phase in spec.phases:
            flops_per_s = cpu.cores_per_package * khz * 1e3 * cpu.flops_per_cycle * phase.cpu.efficiency
            parallel_s = roofline(phase.flops / flops_per_s, phase.bytes / bandwidth, phase.overlap)
            total += parallel_s + phase.wait_s + phase.host_cycles / (khz * 1e3)
        return total / cpu.packages


def fair_shares(
    wishes: dict[KernelPart, float], weights: dict[KernelPart, float], limit: float
) -> dict[KernelPart, float]:
    """Divide a limited resource among the work of several compute kernels, in proportion to weights.

    If one kernel's work requests less than its share, the rest of this share is divided among the others.

    Args:
        wishes: requested amount of each kernel's work.
        weights: weight of each kernel's work.
        limit: amount to divide, in the unit of the requests.
    """
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
