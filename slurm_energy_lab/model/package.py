"""Model of one emulated CPU package over time.

The model contains energy meters, power limits and the current operating point (frequency and power). The
equations are in docs/lab-physics.md, sections 3 and 4. `cpu_physics` computes the power, and `job_power`
divides it among jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_energy_lab.model.cpu_physics import CoreLoad, CpuPhysics, FedGpu
from slurm_energy_lab.model.integrator import Integrator
from slurm_energy_lab.model.job_integrals import JobIntegrals
from slurm_energy_lab.model.job_power import cpu_shares, task_shares
from slurm_energy_lab.model.kernel_run import KernelPart
from slurm_energy_lab.model.power_limits import RunningAverageLimit
from slurm_energy_lab.model.profile import Constraint, NodeProfile
from slurm_energy_lab.model.task_counters import TaskCounters

_HSMP_WINDOW_S = 0.1  # assumed: the firmware's own loop is fast and has no setting


class PackageModel:
    """Energy meters, power limits and current operating point of one CPU package."""

    def __init__(self, profile: NodeProfile, physics: CpuPhysics, index: int, now_s: float) -> None:
        self._physics = physics
        self._memory = profile.memory
        self.index = index
        self.meter = Integrator(now_s, physics.cpu.idle_watts)
        self.core_meter = Integrator(now_s, 0.0)
        self.dram_meter = Integrator(now_s, profile.memory.idle_watts)
        self.job_watts, self.dram_job_watts = JobIntegrals(), JobIntegrals()
        self.task_counters = TaskCounters()
        self._counts_tasks = profile.resctrl is not None
        self.throttle_meter = Integrator(now_s, 0.0)
        self.limits = self._power_on_limits(profile, now_s)
        self.ceiling_khz = physics.max_khz
        self.active_cores = 0.0
        self.rates: dict[KernelPart, float] = {}

    def _power_on_limits(
        self, profile: NodeProfile, now_s: float
    ) -> dict[tuple[str, str], RunningAverageLimit]:
        rapl, idle = profile.rapl, profile.cpu.idle_watts
        constraints = {
            (interface, constraint.name): constraint
            for interface in (("msr", "mmio") if rapl.mmio else ("msr",))
            for constraint in rapl.constraints
        }
        if rapl.hsmp_max_watts is not None:
            limit = Constraint("long_term", profile.cpu.tdp_watts, _HSMP_WINDOW_S, rapl.hsmp_max_watts, True)
            constraints["hsmp", "long_term"] = limit
        return {
            key: RunningAverageLimit(
                limit_watts=constraint.limit_watts,
                window_s=constraint.window_s,
                enabled=constraint.enabled,
                running=constraint.name == "long_term",
                average_watts=idle,
                since_s=now_s,
                power_watts=idle,
            )
            for key, constraint in constraints.items()
        }

    @property
    def throttled(self) -> bool:
        """Whether a power limit keeps the emulated CPU package below its requested frequency."""
        return self.throttle_meter.value > 0

    def operate(self, now_s: float, loads: list[CoreLoad], fed: Sequence[FedGpu]) -> None:
        """Compute the operating point (frequency and power) of the package within its power limits.

        The operating point applies from `now_s` on.

        Args:
            now_s: current time in seconds.
            loads: groups of busy cores with equal load and settings.
            fed: busy GPUs that get their work from threads on this package.
        """
        bound = math.inf
        for limit in self.limits.values():
            limit.update_average(now_s)
            if limit.in_force():
                bound = min(bound, limit.limit_watts)
        self.active_cores = sum(load.count * load.busy for load in loads)
        ceiling = self._physics.turbo_khz(self.active_cores)
        operation = self._physics.operate(loads, ceiling, fed)
        throttled = operation.watts > bound and bool(loads or fed)
        if throttled:
            ceiling = self._ceiling_for(bound, loads, fed)
            operation = self._physics.operate(loads, ceiling, fed)
        self.ceiling_khz = ceiling
        self.rates = operation.rates
        self.meter.set_rate(now_s, operation.watts)
        self.core_meter.set_rate(now_s, operation.core_watts)
        dram_watts = self._memory.idle_watts + self._memory.joules_per_byte * operation.bytes_per_s
        self.dram_meter.set_rate(now_s, dram_watts)
        self.throttle_meter.set_rate(now_s, 1.0 if throttled else 0.0)
        shares = cpu_shares(self._physics, loads, operation, ceiling, fed)
        self.job_watts.set_rates(now_s, shares.watts)
        dram = self._memory.joules_per_byte
        self.dram_job_watts.set_rates(now_s, {job: dram * rate for job, rate in shares.bytes_per_s.items()})
        if self._counts_tasks:
            self.task_counters.set_rates(now_s, task_shares(self._physics, loads, operation, ceiling))
        for limit in self.limits.values():
            limit.set_power(operation.watts)

    def _ceiling_for(self, watts: float, loads: list[CoreLoad], fed: Sequence[FedGpu]) -> int:
        """Return the maximum frequency in kHz at which the package draws at most `watts`.

        If even the minimum frequency draws more, return the minimum frequency.
        """
        low, high = self._physics.min_khz, max(*(load.khz for load in loads), *(gpu.khz for gpu in fed), 0)
        high = min(high, self._physics.turbo_khz(self.active_cores))
        if self._physics.operate(loads, low, fed).watts > watts:
            return low
        while high - low > 1:
            middle = (low + high) // 2
            if self._physics.operate(loads, middle, fed).watts <= watts:
                low = middle
            else:
                high = middle
        return low

    def next_event_s(self) -> float:
        """Return the time at which a running average of the power reaches its limit; infinity if never.

        The power is assumed to stay constant.
        """
        return min(
            (limit.crossing_s for limit in self.limits.values() if limit.crossing_s is not None),
            default=math.inf,
        )
