"""Model of one emulated GPU over time.

The model contains the energy meter, the power limit, locked clocks and the current operating point.
`gpu_physics` computes the power, and `job_power` divides it among jobs. The power limit acts immediately. In
real devices, the control loop needs about 100 ms, which is not modelled.
"""

from __future__ import annotations

from collections import deque

from slurm_energy_lab.model.gpu_physics import GpuPhysics
from slurm_energy_lab.model.integrator import Integrator
from slurm_energy_lab.model.job_integrals import JobIntegrals
from slurm_energy_lab.model.job_power import gpu_shares
from slurm_energy_lab.model.kernel_run import KernelPart
from slurm_energy_lab.model.requests import GpuState

_AVERAGE_S = 1.0


class GpuModel:
    """Energy meter, settings and current operating point of one GPU."""

    def __init__(self, physics: GpuPhysics, index: int, now_s: float) -> None:
        self._physics = physics
        self._memory_share = self._utilisation = 0.0
        self._throttled = False
        self._history: deque[tuple[float, float]] = deque([(now_s, 0.0)])
        self._start_s = now_s
        self.index = index
        self.meter = Integrator(now_s, physics.profile.idle_watts)
        self.limit_watts = physics.profile.default_limit_watts
        self.graphics_range_mhz: tuple[int, int] | None = None
        self.memory_range_mhz: tuple[int, int] | None = None
        self.parts: tuple[KernelPart, ...] = ()
        self.clock_mhz = float(physics.profile.idle_graphics_mhz)
        self.rates: dict[KernelPart, float] = {}
        self.job_watts = JobIntegrals()

    def target_mhz(self) -> float:
        """Return the maximum graphics clock in MHz of the emulated GPU within its locked clocks."""
        return float(_table_clock(self._physics.profile.graphics_clocks_mhz, self.graphics_range_mhz))

    def memory_mhz(self) -> int:
        """Return the memory clock in MHz."""
        return _table_clock(self._physics.profile.memory_clocks_mhz, self.memory_range_mhz)

    def operate(self, now_s: float) -> None:
        """Compute the operating point for the current work and settings from time `now_s` on.

        The graphics clock is lowered as far as the power limit requires.
        """
        clock, memory = self.target_mhz(), float(self.memory_mhz())
        operation = self._physics.operate(self.parts, clock, memory)
        self._throttled = bool(self.parts) and operation.watts > self.limit_watts
        if self._throttled:
            clock = self._clock_for(self.limit_watts, clock, memory)
            operation = self._physics.operate(self.parts, clock, memory)
        self.clock_mhz = clock if self.parts else self._idle_mhz()
        self._memory_share, self._utilisation = operation.memory_share, operation.utilisation
        self.rates = operation.rates
        self.job_watts.set_rates(now_s, gpu_shares(self._physics, self.parts, operation, clock))
        if self.meter.set_rate(now_s, operation.watts):
            self._remember(now_s)

    def _clock_for(self, watts: float, high_mhz: float, memory_mhz: float) -> float:
        """Return the highest clock at which the GPU draws at most `watts`.

        The clock is in MHz, with an error of at most 1 kHz. `high_mhz` is the upper bound of the clock. If
        the GPU draws more than `watts` even at the minimum clock, return the minimum clock.
        """
        low, high = int(self._physics.min_mhz * 1000), int(high_mhz * 1000)
        if self._physics.operate(self.parts, low / 1000, memory_mhz).watts > watts:
            return low / 1000
        while high - low > 1:
            middle = (low + high) // 2
            if self._physics.operate(self.parts, middle / 1000, memory_mhz).watts <= watts:
                low = middle
            else:
                high = middle
        return low / 1000

    def _idle_mhz(self) -> float:
        """Return the graphics clock of an idle GPU in MHz.

        Locked clocks hold the clock of an idle GPU at the minimum of their range.
        """
        if self.graphics_range_mhz is None:
            return float(self._physics.profile.idle_graphics_mhz)
        low = self.graphics_range_mhz[0]
        return float(_table_clock(self._physics.profile.graphics_clocks_mhz, (low, low)))

    def _remember(self, now_s: float) -> None:
        """Record the energy at a change of power. Delete records that are too old for the average power."""
        self._history.append((now_s, self.meter.integral_at(now_s)))
        while len(self._history) > 1 and self._history[1][0] <= now_s - _AVERAGE_S:
            self._history.popleft()

    def average_watts(self, now_s: float) -> float:
        """Return the mean power of the GPU in watts over the last second.

        If the model started less than a second ago, the mean is over the time since the start.
        """
        begin = max(self._start_s, now_s - _AVERAGE_S)
        if now_s <= begin:
            return self.meter.value
        return (self.meter.integral_at(now_s) - self._joules_at(begin)) / (now_s - begin)

    def _joules_at(self, then_s: float) -> float:
        """Return the energy at a time within the last second, interpolated between the recorded changes."""
        corners = list(self._history)
        later_s, later_j = None, 0.0
        for corner_s, joules in reversed(corners):
            if corner_s <= then_s:
                if later_s is None:
                    return self.meter.integral_at(then_s)
                return joules + (later_j - joules) * (then_s - corner_s) / (later_s - corner_s)
            later_s, later_j = corner_s, joules
        return corners[0][1]

    def state(self, now_s: float) -> GpuState:
        """Return the state of the GPU as NVML reports it."""
        clocks = self._physics.profile.graphics_clocks_mhz
        shown = next((clock for clock in clocks if clock <= self.clock_mhz), clocks[-1])
        return GpuState(
            graphics_clock_mhz=shown,
            memory_clock_mhz=self.memory_mhz(),
            utilisation=self._utilisation,
            memory_utilisation=self._memory_share,
            limit_watts=self.limit_watts,
            power_watts=self.meter.value,
            power_average_watts=self.average_watts(now_s),
            energy_mj=int(self.meter.integral_at(now_s) * 1000),
            throttle_power_cap=self._throttled,
            throttle_clocks_setting=bool(self.parts)
            and not self._throttled
            and self.target_mhz() < self._physics.max_mhz,
            idle=not self.parts,
        )


def _table_clock(table: tuple[int, ...], locked_range: tuple[int, int] | None) -> int:
    """Return the maximum clock within a locked range.

    `table` lists the clocks in descending order. A `locked_range` of None means that clocks are not locked.
    If no clock of the table is within the range, return the minimum clock.
    """
    if locked_range is None:
        return table[0]
    return next((clock for clock in table if clock <= max(locked_range)), table[-1])
