"""Execution of a program whose hardware settings (operating points) change while it runs.

The execution is computed from the steady state of the program's phases.
"""

from __future__ import annotations

import math

from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy_lab.model.kernels import KernelSpec
from slurm_energy_lab.model.steady_state import SteadyState


class PhaseWalk:
    """Execution of a program on all CPUs or GPUs of a node, computed faster than with the node model.

    Attributes:
        seconds: time since the start.
        joules: energy of the whole node since the start.
        package_joules: energy of one package since the start.
        gpu_joules: energy of one GPU since the start; 0 without GPUs.
        units: progress since the start.
    """

    def __init__(self, truth: SteadyState, spec: KernelSpec, size: float) -> None:
        """Start a program of the given problem size."""
        self._truth = truth
        self._spec = spec
        self._cycles = max(1, math.ceil(size)) if spec.looped else 1
        self._scale = spec.scale(size) / self._cycles
        self._index = 0
        self._left = 1.0
        self.seconds = self.joules = self.package_joules = self.gpu_joules = self.units = 0.0

    @property
    def finished(self) -> bool:
        """Whether the program has ended."""
        return self._cycles == 0

    def advance(self, point: OperatingPoint, seconds: float) -> None:
        """Run at an operating point for a given time. Stop earlier if the program ends."""
        left_s = seconds
        while left_s > 0 and not self.finished:
            phase = self._spec.phases[self._index]
            figures = self._truth.phase(point, phase)
            phase_s = figures.seconds * self._scale
            step_s = min(left_s, self._left * phase_s)
            self.seconds += step_s
            self.joules += step_s * figures.watts
            self.package_joules += step_s * figures.package_watts
            self.gpu_joules += step_s * (figures.gpu_watts or 0.0)
            self.units += phase.units * step_s / phase_s
            left_s -= step_s
            if step_s < self._left * phase_s:
                self._left -= step_s / phase_s
            else:
                self._next_phase()

    def finish_step(self, point: OperatingPoint) -> None:
        """Run the program at an operating point until the current step ends.

        At the end of a step, the program reports progress. A program with only one phase has no steps and can
        report at any time. For such a program the method does nothing.
        """
        if len(self._spec.phases) == 1:
            return
        while not self.finished:
            units = self._spec.phases[self._index].units
            self.advance(point, math.nextafter(self._left * self._phase_seconds(point), math.inf))
            if units:
                return

    def _phase_seconds(self, point: OperatingPoint) -> float:
        return self._truth.phase(point, self._spec.phases[self._index]).seconds * self._scale

    def _next_phase(self) -> None:
        self._left = 1.0
        self._index += 1
        if self._index == len(self._spec.phases):
            self._index = 0
            self._cycles -= 1
