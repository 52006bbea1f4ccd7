"""The hardware that tuning may change for a job, and the operating points that this hardware permits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from slurm_energy.config import BoundsConfig
from slurm_energy.devices.hardware import CpufreqPolicy, GpuInfo, NodeHardware
from slurm_energy.policies import JobScope
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.policies.scope import job_hardware
from slurm_energy.tuning.candidates import (
    CpuHardware,
    GpuHardware,
    cpu_frequencies,
    gpu_clocks,
    gpu_limits,
    joint_candidates,
)

_MAX_LIMITS = 14
_TUNED_PROFILES = ("MAX_Q", "MAX_Q_1", "MAX_Q_2", "MAX_Q_3", "HPC", "TRAINING", "COMPUTE", "MEMORY_BOUND")
"""Workload power profiles that are candidates, in the order in which they are offered to a search."""
_MAX_PROFILES = 4
_MAX_HOST_FREQUENCIES = 5
"""Maximum number of CPU frequencies that are combined with the GPU settings of a GPU job."""
_BINDING_SHARE = 0.95
"""A power limit above this share of the untuned job's draw changes nothing."""
_IDLE_SHARE = 0.3
"""A GPU that draws less than this share of its limit is idle if the job did not request it."""
_CLOCKS_BELOW = 0.7
"""Clock bounds are candidates if a GPU draws less than this share of its limit."""


@dataclass(frozen=True, slots=True)
class TunableHardware:
    """The hardware whose settings tuning may change for a job.

    Attributes:
        hardware: the node's hardware with the limits that are in force while the job is untuned.
        scope: part of the node that is allocated to the job.
        blocked: names of the fields of `OperatingPoint` that tuning must not change.
        bounds: for each setting, the lowest and the highest value that the site permits. Tuning sets no
            value below the lowest value.
    """

    hardware: NodeHardware
    scope: JobScope
    blocked: frozenset[str] = frozenset()
    bounds: BoundsConfig = field(default_factory=BoundsConfig)

    @property
    def package_count(self) -> int:
        """Number of processor packages on which the job has CPUs."""
        own, _ = job_hardware(self.hardware, self.scope)
        return len(own.packages)

    def without_idle_gpus(self, gpu_draw_watts: float | None) -> TunableHardware:
        """Return this hardware without the GPUs if the job does not use them.

        The job does not use the GPUs if it requested no GPUs and they are idle. They are idle if their power
        is a small fraction of their limits. If the job uses GPUs, the hardware is returned unchanged.

        Args:
            gpu_draw_watts: highest mean power of a GPU of the untuned job; None if unknown or without GPUs.
        """
        limits = [gpu.limit_watts for gpu in self.gpus if gpu.limit_watts is not None]
        busy = gpu_draw_watts is not None and gpu_draw_watts > _IDLE_SHARE * min(limits, default=math.inf)
        if self.scope.gpu_job or busy:
            return self
        return dataclasses.replace(self, scope=dataclasses.replace(self.scope, gpus=()))

    def allowed(self, point: OperatingPoint) -> OperatingPoint:
        """Return the operating point that is in force if tuning applies `point`.

        An operating point is a set of hardware settings. Settings that tuning must not change are removed. A
        GPU clock below the site's minimum is replaced by this minimum.
        """
        permitted = dataclasses.replace(point, **dict.fromkeys(self.blocked))
        if permitted.gpu_clock_mhz is None:
            return permitted
        clock_mhz = max(permitted.gpu_clock_mhz, self.bounds.gpu_clock_mhz[0])
        return dataclasses.replace(permitted, gpu_clock_mhz=clock_mhz)

    def can_change(self, point: OperatingPoint) -> bool:
        """Return whether tuning may change every setting of an operating point."""
        return self.blocked.isdisjoint(point.to_json())

    @property
    def gpus(self) -> tuple[GpuInfo, ...]:
        """The GPUs of the job that no other job can use."""
        own = (gpu for gpu in self.hardware.gpus if gpu.index in self.scope.gpus)
        return tuple(gpu for gpu in own if self.scope.whole_node or not gpu.partitioned)

    @property
    def gpu(self) -> GpuHardware | None:
        """Range of power limits and highest clock that are common to all GPUs of the job.

        The value is None if the job has no GPU whose power limit can be lowered.
        """
        gpus = self.gpus
        limits = [gpu.limit_watts for gpu in gpus if gpu.limit_watts is not None]
        if not gpus or len(limits) < len(gpus):
            return None
        clocks = [gpu.clocks_mhz[1] for gpu in gpus if gpu.clocks_mhz is not None]
        has_clocks = len(clocks) == len(gpus) and "gpu_clock_mhz" not in self.blocked
        return GpuHardware(
            count=len(gpus),
            default_limit_watts=min(limits),
            min_limit_watts=max(self._min_limit_watts(gpu) for gpu in gpus),
            max_clock_mhz=float(min(clocks)) if has_clocks else None,
        )

    @property
    def cpu(self) -> CpuHardware | None:
        """The range of frequency bounds of the job's CPUs; None if tuning must not change them."""
        if "cpu_max_mhz" in self.blocked or not self.scope.knows_cpus:
            return None
        own, _ = job_hardware(self.hardware, self.scope)
        if not own.policies:
            return None
        low_khz = max(policy.hardware_range_khz[0] for policy in own.policies)
        low_khz = max(low_khz, round(1000 * self.bounds.cpu_freq_mhz[0]))
        high_khz = min(policy.bounds_khz[1] for policy in own.policies)
        if low_khz >= high_khz:
            return None
        table_khz = set(own.policies[0].available_khz).intersection(*(p.available_khz for p in own.policies))
        return CpuHardware(
            max(1, len(own.packages)),
            max_mhz=high_khz / 1000,
            min_mhz=low_khz / 1000,
            table_mhz=tuple(sorted(khz / 1000 for khz in table_khz)),
            boosts=self._can_disable_boost(own.policies),
        )

    def _can_disable_boost(self, policies: Sequence[CpufreqPolicy]) -> bool:
        """Return whether tuning of this job can switch boost off by a frequency bound.

        The bound is the maximum of the frequency table. The result is True only if three conditions hold.
        The job has the whole node, because boost is a setting of the whole node. The node has boost. All
        CPUs use the driver acpi-cpufreq.
        """
        drivers = {policy.driver for policy in policies}
        return self.scope.whole_node and self.hardware.boost and drivers == {"acpi-cpufreq"}

    def candidates(self, gpu_draw_watts: float | None) -> tuple[OperatingPoint, ...]:
        """Return the operating points from which a search for the best settings of a job may choose.

        The untuned settings (the settings without tuning) are not among these points.

        A power limit above the power that the untuned job draws changes nothing and is left out. If the
        untuned job draws far less power than the limit, lower limits help little or not at all. Upper bounds
        of the GPU clock are then added to the points.

        Args:
            gpu_draw_watts: highest mean power of a GPU of the untuned job; None if unknown or without GPUs.
        """
        gpu, cpu = self.gpu, self.cpu
        frequencies: Sequence[OperatingPoint] = cpu_frequencies(cpu) if cpu is not None else ()
        if gpu is None or gpu_draw_watts is None:
            return () if self.scope.gpu_job else tuple(frequencies)
        return joint_candidates(
            self._gpu_points(gpu, gpu_draw_watts), _spread(frequencies, _MAX_HOST_FREQUENCIES)
        )

    def _min_limit_watts(self, gpu: GpuInfo) -> float:
        """Return the minimum power limit that tuning may set on a GPU, in watts.

        The result is the larger of two minimums: the minimum of the GPU and the minimum that the site has
        configured. The site's minimum is ignored if it is not below the limit in force.
        """
        low, site = gpu.min_limit_watts or 0.0, self.bounds.gpu_cap_watts[0]
        return max(low, site) if gpu.limit_watts is not None and site < gpu.limit_watts else low

    def _gpu_points(self, gpu: GpuHardware, draw_watts: float) -> list[OperatingPoint]:
        points = []
        if "gpu_limit_watts" not in self.blocked:
            points = [
                point
                for point in gpu_limits(gpu, _MAX_LIMITS)
                if (point.gpu_limit_watts or 0.0) <= _BINDING_SHARE * draw_watts
            ]
        if not points or draw_watts < _CLOCKS_BELOW * gpu.default_limit_watts:
            lowest = [one.clocks_mhz[0] for one in self.gpus if one.clocks_mhz is not None]
            points += gpu_clocks(gpu, max([*lowest, self.bounds.gpu_clock_mhz[0]]))
        return [*points, *self._profile_points()]

    def _profile_points(self) -> list[OperatingPoint]:
        """Return one operating point for each power profile that all GPUs of the job offer.

        An operating point is a set of hardware settings. The driver sets power limit and clocks according to
        an enforced power profile. Such a profile is therefore never combined with a power limit or a clock
        bound.
        """
        gpus = self.gpus
        if not gpus or "gpu_power_profile" in self.blocked:
            return []
        common = set(gpus[0].power_profiles).intersection(*(gpu.power_profiles for gpu in gpus))
        names = [name for name in _TUNED_PROFILES if name in common]
        return [OperatingPoint(gpu_power_profile=name) for name in names[:_MAX_PROFILES]]


def _spread(points: Sequence[OperatingPoint], count: int) -> Sequence[OperatingPoint]:
    """Return at most `count` of the given operating points (settings), evenly spread.

    The first and the last operating point are included.
    """
    if len(points) <= count:
        return points
    return [points[round(i * (len(points) - 1) / (count - 1))] for i in range(count)]
