"""Power and progress of a GPU as a function of its kernel parts and clocks.

The module keeps no state. The equations are in docs/lab-physics.md, section 5. The module `gpu` handles power
limits and time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_energy_lab.model.kernel_run import KernelPart, PhaseWork
from slurm_energy_lab.model.kernels import HOST_OVERLAP, KernelSpec, roofline
from slurm_energy_lab.model.profile import GpuProfile


@dataclass(frozen=True, slots=True)
class GpuOperatingPoint:
    """Operating point of a GPU.

    Attributes:
        watts: power.
        memory_share: share of the peak memory bandwidth in use, 0 to 1.
        utilisation: share of time for which a kernel part runs on the GPU, 0 to 1.
        rates: kernel phases per second of each kernel part.
        activities: mean switching activity of each kernel part, relative to GEMM.
    """

    watts: float
    memory_share: float
    utilisation: float
    rates: dict[KernelPart, float]
    activities: dict[KernelPart, float]


class GpuPhysics:
    """Power and progress rates of one GPU as described by a profile."""

    def __init__(self, profile: GpuProfile) -> None:
        self.profile = profile
        self.min_mhz = float(profile.graphics_clocks_mhz[-1])
        self.max_mhz = float(profile.graphics_clocks_mhz[0])

    def voltage_square(self, mhz: float) -> float:
        """Return (V / V_max)^2 of a GPU at the graphics clock `mhz`.

        Below a certain clock (the knee), the voltage V is constant. Above it, V rises linearly to V_max.
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
        """Return power and progress rates while parts of compute kernels share the GPU's time equally.

        Args:
            parts: the kernel parts; empty for an idle GPU.
            mhz: graphics clock.
            memory_mhz: memory clock.
        """
        gpu = self.profile
        if not parts:
            return GpuOperatingPoint(gpu.idle_watts, 0.0, 0.0, {}, {})
        bandwidth = self.bandwidth(mhz, memory_mhz)
        rates: dict[KernelPart, float] = {}
        activities: dict[KernelPart, float] = {}
        bytes_per_s = activity = utilisation = 0.0
        for part in parts:
            task = part.task
            busy_s = roofline(self._compute_s(task, mhz), task.bytes / bandwidth, task.overlap)
            period_s = task.wait_s + roofline(busy_s, host_seconds(part), HOST_OVERLAP)
            rates[part] = 1.0 / period_s / len(parts)
            bytes_per_s += task.bytes * rates[part]
            activities[part] = busy_s / period_s * self.activity(task, busy_s, mhz)
            activity += activities[part] / len(parts)
            utilisation += busy_s / period_s / len(parts)
        watts = gpu.idle_watts + self.core_watts(activity, mhz) + gpu.joules_per_byte * bytes_per_s
        return GpuOperatingPoint(watts, bytes_per_s / gpu.bytes_per_s, utilisation, rates, activities)

    def _compute_s(self, task: PhaseWork, mhz: float) -> float:
        return task.flops / (self.profile.flops_per_s * task.factors.efficiency * mhz / self.max_mhz)

    def activity(self, task: PhaseWork, busy_s: float, mhz: float) -> float:
        """Return the switching activity of the GPU while it runs one phase of a kernel alone.

        The activity determines the dynamic power. It is relative to the activity of GEMM.

        Args:
            task: kernel phase with its operations and bytes.
            busy_s: seconds for which the phase keeps the GPU busy.
            mhz: graphics clock.
        """
        span = task.factors.busy - task.factors.stall
        return task.factors.stall + (span * self._compute_s(task, mhz) / busy_s if busy_s else 0.0)

    def core_watts(self, activity: float, mhz: float) -> float:
        """Return the power of a busy GPU above its idle power, without the power of the memory traffic.

        Args:
            activity: switching activity relative to GEMM.
            mhz: graphics clock.
        """
        gpu = self.profile
        dynamic = gpu.dynamic_watts * activity * mhz / self.max_mhz
        return self.voltage_square(mhz) * (gpu.awake_watts + dynamic)

    def full_speed_s(self, spec: KernelSpec, host_khz: float) -> float:
        """Return the seconds that problem size 1 takes at maximum clocks without a power limit.

        Args:
            spec: definition of the compute kernel.
            host_khz: frequency of the core that feeds the GPU.
        """
        gpu = self.profile
        bandwidth = self.bandwidth(self.max_mhz, gpu.memory_clocks_mhz[0])
        host_hz = host_khz * 1e3
        return math.fsum(
            phase.wait_s
            + roofline(
                roofline(
                    phase.flops / (gpu.flops_per_s * phase.gpu.efficiency),
                    phase.bytes / bandwidth,
                    phase.overlap,
                ),
                phase.host_cycles / host_hz,
                HOST_OVERLAP,
            )
            for phase in spec.phases
        )


def host_seconds(part: KernelPart) -> float:
    """Return the seconds that the CPU works in the current phase of a GPU kernel.

    The seconds apply to the current frequency of the core that feeds the GPU.
    """
    return part.task.host_cycles / (part.host_khz * 1e3)
