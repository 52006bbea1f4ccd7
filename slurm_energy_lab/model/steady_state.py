"""Exact speed and power of a program at any operating point of an emulated node.

The values have no noise. The best point that is found with them is the true optimum. The results of tuning
are compared with this optimum. Each phase of the program runs on the node model until the power limits have
settled. No code of the tuning is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy_lab.model.kernels import KernelPhase, KernelSpec
from slurm_energy_lab.model.node import NodeModel
from slurm_energy_lab.model.problem_size import full_speed_seconds
from slurm_energy_lab.model.profile import NodeProfile
from slurm_energy_lab.model.requests import KernelRequest

_SETTLE_S = 120.0
"""Time after which running averages of power limits (windows of 1 s, at most 28 s) have settled."""
_MEASURE_S = 1.0
_LONG_S = 1e4
_GPU_LIMITS = 13
_CPU_FREQUENCIES = 9


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """Speed and power of one phase of an emulated program at one operating point (settings).

    Attributes:
        seconds: time of the phase at problem size 1.
        watts: power of the node.
        package_watts: power of one package.
        gpu_watts: power of one GPU; None without GPUs.
    """

    seconds: float
    watts: float
    package_watts: float
    gpu_watts: float | None


@dataclass(frozen=True, slots=True)
class StaticRun:
    """Time and energy of a whole program that runs at one operating point (static run).

    Attributes:
        point: operating point during the whole run.
        seconds: run time of the program.
        joules: energy of the whole node.
    """

    point: OperatingPoint
    seconds: float
    joules: float

    @property
    def edp(self) -> float:
        """Energy-delay product in joule seconds."""
        return self.joules * self.seconds


class SteadyState:
    """Speed and power of each phase of a program on one node.

    The program runs on all CPUs or on all GPUs. The node is otherwise idle.
    """

    def __init__(self, profile: NodeProfile, device: str) -> None:
        """Store the node's profile and the device on which programs run, `cpu` or `gpu`."""
        self.profile = profile
        self._device = device
        self._figures: dict[tuple[OperatingPoint, KernelPhase], PhaseFigures] = {}

    def phase(self, point: OperatingPoint, phase: KernelPhase) -> PhaseFigures:
        """Return speed and power of a phase of a program at given hardware settings (operating point)."""
        key = point, phase
        if key not in self._figures:
            self._figures[key] = self._run(point, phase)
        return self._figures[key]

    def static_run(self, spec: KernelSpec, size: float, point: OperatingPoint) -> StaticRun:
        """Return time and energy of a program of the given problem size at one operating point."""
        seconds = joules = 0.0
        for phase, count in Counter(spec.phases).items():
            figures = self.phase(point, phase)
            seconds += count * figures.seconds
            joules += count * figures.seconds * figures.watts
        scale = spec.scale(size)
        return StaticRun(point, seconds * scale, joules * scale)

    def sweep(
        self, spec: KernelSpec, size: float, points: Iterable[OperatingPoint] | None = None
    ) -> list[StaticRun]:
        """Run a program at several operating points (settings). Return time and energy of each run.

        `points` contains the operating points. None means all points that `operating_points` returns.
        """
        chosen = operating_points(self.profile, self._device) if points is None else points
        return [self.static_run(spec, size, point) for point in chosen]

    def _run(self, point: OperatingPoint, phase: KernelPhase) -> PhaseFigures:
        """Return the steady speed and power of a kernel phase at given hardware settings.

        The phase is simulated for a time so long that it does not end.
        """
        node = NodeModel(self.profile)
        apply_point(node, point)
        spec = KernelSpec("phase", "", 1.0, "", (dataclasses.replace(phase, units=1.0),))
        size = _LONG_S / full_speed_seconds(self.profile, spec, self._device)
        run_id = node.submit(KernelRequest("phase", self._device, size=size), 0.0, spec)
        names = ["node", "cpu[0]", *(["gpu[0]"] if self.profile.gpu else [])]
        node.advance(_SETTLE_S)
        before_units = node.progress_units(run_id)
        before_joules = [node.energy_joules(name) for name in names]
        node.advance(_SETTLE_S + _MEASURE_S)
        done = node.progress_units(run_id) - before_units
        joules = [node.energy_joules(name) for name in names]
        watts = [(now - before) / _MEASURE_S for now, before in zip(joules, before_joules, strict=True)]
        seconds = _MEASURE_S / done / size if done > 0 else math.inf
        return PhaseFigures(seconds, watts[0], watts[1], watts[2] if len(watts) > 2 else None)


def apply_point(node: NodeModel, point: OperatingPoint) -> None:
    """Apply an operating point (a set of settings) to all CPUs and GPUs of a node model.

    A setting without a value gets its default.
    """
    profile = node.profile
    for cpu in range(profile.cpu.cpus):
        request = node.cpufreq(cpu)
        max_khz = profile.cpufreq.cpuinfo_max_khz
        if point.cpu_max_mhz is not None:
            max_khz = min(max_khz, max(profile.cpufreq.min_khz, round(point.cpu_max_mhz * 1000)))
        changed = dataclasses.replace(
            request,
            max_khz=max_khz,
            epp=request.epp if point.cpu_epp is None else point.cpu_epp,
            boost=point.boost is not False
            and (point.cpu_max_mhz is None or not _disables_boost(profile, max_khz)),
        )
        node.set_cpufreq(cpu, changed)
    for limit in profile.rapl.constraints:
        for package in range(profile.cpu.packages) if limit.name == "long_term" else ():
            watts = limit.limit_watts if point.package_limit_watts is None else point.package_limit_watts
            node.set_package_limit(package, limit.name, watts, limit.window_s, True)
    if profile.gpu is None:
        return
    low_mhz = profile.gpu.graphics_clocks_mhz[-1]
    clocks = None if point.gpu_clock_mhz is None else (low_mhz, max(low_mhz, round(point.gpu_clock_mhz)))
    limit_watts = profile.gpu.default_limit_watts
    if point.gpu_limit_watts is not None:
        limit_watts = min(
            profile.gpu.max_limit_watts, max(profile.gpu.min_limit_watts, point.gpu_limit_watts)
        )
    for index in range(profile.gpu.count):
        node.set_gpu(index, limit_watts, clocks)


def operating_points(profile: NodeProfile, device: str) -> list[OperatingPoint]:
    """Return the operating points for an exhaustive search of the best fixed settings of a program.

    The first point is the untuned point. For a GPU program, the result has every combination of the GPU
    power limits and the CPU frequencies. For a CPU program, it has every CPU frequency.
    """
    cpufreq = profile.cpufreq
    bounds_mhz: list[float | None] = [
        None,
        *(khz / 1000 for khz in _steps(cpufreq.min_khz, cpufreq.max_khz, _CPU_FREQUENCIES)),
    ]
    if cpufreq.available_khz:
        first = 0 if _disables_boost(profile, cpufreq.available_khz[0]) else 1
        bounds_mhz = [None, *(khz / 1000 for khz in cpufreq.available_khz[first:])]
    limits: list[float | None] = [None]
    if device == "gpu" and profile.gpu is not None:
        gpu = profile.gpu
        limits += _steps(gpu.min_limit_watts, gpu.default_limit_watts, _GPU_LIMITS)[:-1]
    grid = [OperatingPoint(gpu_limit_watts=limit, cpu_max_mhz=mhz) for limit in limits for mhz in bounds_mhz]
    assert grid[0] == UNTUNED
    return grid


def _disables_boost(profile: NodeProfile, bound_khz: int) -> bool:
    """Return whether slurm-energy switches boost off to keep a frequency bound on the emulated node.

    This is the case for acpi-cpufreq if the bound is both the base frequency and the highest entry of the
    frequency table. Some tables have a higher entry for boost, which is 1 MHz above the base frequency.
    """
    cpufreq = profile.cpufreq
    return cpufreq.driver == "acpi-cpufreq" and bound_khz == cpufreq.available_khz[0] == cpufreq.base_khz


def _steps(low: float, high: float, count: int) -> list[float]:
    """Return `count` evenly spaced values from `low` to `high`, both included."""
    return [low + (high - low) * index / (count - 1) for index in range(count)]
