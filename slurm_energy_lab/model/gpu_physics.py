"""Power and progress of a GPU as a function of its kernel parts and clocks.

Nothing in this module keeps state. The equations are in docs/lab-physics.md, section 5. Power limits and time
are in `gpu`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_energy_lab.model.kernel_run import KernelPart, PhaseWork
from slurm_energy_lab.model.kernels import KernelSpec, roofline
from slurm_energy_lab.model.profile import GpuProfile


@dataclass(frozen=True, slots=True)
class GpuOperatingPoint:
    """Operating point of a GPU.

    Attributes:
        watts: power.
        memory_share: share of the peak memory bandwidth in use, 0 to 1.
        rates: kernel phases per second of each kernel part.
    """

    watts: float
    memory_share: float
    rates: dict[KernelPart, float]


class GpuPhysics:
    """Power and progress rates of one GPU as described by a profile."""

    def __init__(self, profile: GpuProfile) -> None:
        self.profile = profile
        self.min_mhz = float(profile.graphics_clocks_mhz[-1])
        self.max_mhz = float(profile.graphics_clocks_mhz[0])

    def voltage_square(self, mhz: float) -> float:
        """Return (V / V_max)^2 at a graphics clock.

        The voltage is constant up to the knee, then linear up to V_max.
        """
        gpu = self.profile
        volts = gpu.voltage_floor
        if mhz > gpu.voltage_knee_mhz:
            part = (mhz - gpu.voltage_knee_mhz) / (self.max_mhz - gpu.voltage_knee_mhz)
            volts += (gpu.voltage_max - gpu.voltage_floor) * part
        return (volts / gpu.voltage_max) ** 2

    def bandwidth(self, mhz: float, memory_mhz: float) -> float:
        """Return the memory bandwidth in bytes per second at a graphics clock and a memory clock."""
        gpu = self.profile
        share = min(1.0, mhz / gpu.bandwidth_knee_mhz)
        return gpu.bytes_per_s * share * memory_mhz / gpu.memory_clocks_mhz[0]

    def operate(self, parts: tuple[KernelPart, ...], mhz: float, memory_mhz: float) -> GpuOperatingPoint:
        """Return power and progress rates while kernel parts share the GPU's time equally.

        Args:
            parts: the kernel parts; empty for an idle GPU.
            mhz: graphics clock.
            memory_mhz: memory clock.
        """
        gpu = self.profile
        if not parts:
            return GpuOperatingPoint(gpu.idle_watts, 0.0, {})
        bandwidth = self.bandwidth(mhz, memory_mhz)
        rates: dict[KernelPart, float] = {}
        bytes_per_s = activity = 0.0
        for part in parts:
            task = part.task
            period_s = roofline(self._compute_s(task, mhz), task.bytes / bandwidth, task.overlap)
            rates[part] = 1.0 / period_s / len(parts)
            bytes_per_s += task.bytes * rates[part]
            activity += self.activity(task, period_s, mhz) / len(parts)
        watts = gpu.idle_watts + self.core_watts(activity, mhz) + gpu.joules_per_byte * bytes_per_s
        return GpuOperatingPoint(watts, bytes_per_s / gpu.bytes_per_s, rates)

    def _compute_s(self, task: PhaseWork, mhz: float) -> float:
        return task.flops / (self.profile.flops_per_s * task.factors.efficiency * mhz / self.max_mhz)

    def activity(self, task: PhaseWork, period_s: float, mhz: float) -> float:
        """Return the switching activity, relative to GEMM, of a phase that runs alone on the GPU.

        Args:
            task: the phase.
            period_s: seconds that the phase takes.
            mhz: graphics clock.
        """
        span = task.factors.busy - task.factors.stall
        return task.factors.stall + span * self._compute_s(task, mhz) / period_s

    def core_watts(self, activity: float, mhz: float) -> float:
        """Return the power of a busy GPU above its idle power, without the power of the memory traffic.

        Args:
            activity: switching activity relative to GEMM.
            mhz: graphics clock.
        """
        gpu = self.profile
        dynamic = gpu.dynamic_watts * activity * mhz / self.max_mhz
        return self.voltage_square(mhz) * (gpu.awake_watts + dynamic)

    def full_speed_s(self, spec: KernelSpec) -> float:
        """Return the seconds that problem size 1 takes at maximum clocks without a power limit."""
        gpu = self.profile
        bandwidth = self.bandwidth(self.max_mhz, gpu.memory_clocks_mhz[0])
        return math.fsum(
            roofline(
                phase.flops / (gpu.flops_per_s * phase.gpu.efficiency),
                phase.bytes / bandwidth,
                phase.overlap,
            )
            for phase in spec.phases
        )
