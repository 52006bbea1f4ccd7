"""Priors of a search: ensembles built from the hardware's ranges and the job's own untuned power.

A prior is built after the untuned reference was measured, because the job's own draw decides which limits
bind: a limit above it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.candidates import CpuHardware, GpuHardware, Reference, safe_point
from slurm_energy.tuning.device_response import DeviceResponse
from slurm_energy.tuning.ensemble import Array, Ensemble, Observation
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint

SAMPLES = 1000
_SEED = 12
_MAX_STATIC_RISK = 0.05


class Prior(Protocol):
    """Knowledge about the response of a job before it was measured at a tuned point."""

    def ensemble(self, candidates: Sequence[OperatingPoint], reference: Reference) -> Ensemble:
        """Return the samples of the response at the candidates."""
        ...

    def static_point(
        self, candidates: Sequence[OperatingPoint], reference: Reference, objective: Objective
    ) -> tuple[OperatingPoint, CurveSource]:
        """Return the point of a job whose progress is unknown, and the source of the choice."""
        ...


class PhysicalPrior:
    """Generic prior from the physical model of a job on GPUs and processors.

    A GPU job is busy on the GPU for a share of its time and waits for the host otherwise. The host's work
    runs before or beside that of the GPU, so that slow processors can starve the GPU.
    """

    def __init__(
        self, gpu: GpuHardware | None = None, cpu: CpuHardware | None = None, samples: int = SAMPLES
    ) -> None:
        """Draw the samples that do not depend on the job."""
        generator = np.random.default_rng(_SEED)
        draw = generator.uniform
        self._gpu, self._cpu = gpu, cpu
        self._gpu_response = DeviceResponse(generator, samples, like_gpus=True) if gpu else None
        self._cpu_response = DeviceResponse(generator, samples, like_gpus=False) if cpu else None
        self._busy_share = np.where(
            generator.random(samples) < 0.5, draw(0.85, 1.0, samples), draw(0.3, 1.0, samples)
        )[:, None]
        self._gpu_idle_share = draw(0.06, 0.28, samples)[:, None]
        self._limit_yield = draw(0.93, 1.0, samples)[:, None]
        self._gpu_share = draw(0.5, 0.95, samples)[:, None]
        self._hidden_host_share = (draw(0.2, 1.0, samples) * (generator.random(samples) < 0.7))[:, None]
        self._host_dynamic_share = draw(0.05, 0.5, samples)[:, None]
        self._used_clock = draw(0.7, 1.0, samples)[:, None]
        # The maximum of a frequency table is the base frequency, and boost goes beyond it.
        beyond = cpu is not None and bool(cpu.table_mhz)
        self._used_cpu_clock = draw(1.0, 1.6, samples)[:, None] if beyond else self._used_clock
        self._package_yield = draw(0.93, 1.0, samples)[:, None]
        self._profile_time = np.abs(draw(-0.03, 0.05, samples))[:, None]
        self._profile_power = draw(-0.12, 0.02, samples)[:, None]
        self._preference_time = draw(-0.005, 0.04, samples)[:, None]
        self._preference_power = draw(-0.10, 0.02, samples)[:, None]

    def ensemble(self, candidates: Sequence[OperatingPoint], reference: Reference) -> Ensemble:
        """Return the samples of the response at the candidates."""
        if self._gpu is None:
            log_time, log_power = self._cpu_job(candidates, reference)
        else:
            log_time, log_power = self._gpu_job(candidates, reference)
        return Ensemble(candidates, *self._with_hints(candidates, log_time, log_power))

    def static_point(
        self, candidates: Sequence[OperatingPoint], reference: Reference, objective: Objective
    ) -> tuple[OperatingPoint, CurveSource]:
        """Return the safe point of the generic prior, see `safe_point`."""
        return safe_point(candidates, reference, self._gpu, objective), CurveSource.GENERIC_PRIOR

    def _gpu_job(self, candidates: Sequence[OperatingPoint], reference: Reference) -> tuple[Array, Array]:
        assert self._gpu is not None and self._gpu_response is not None
        gpu = self._gpu
        total_share = self._gpu_total_share(reference)
        gpu_watts = total_share * reference.watts / gpu.count
        # Busy and idle draw average to the measured draw. A busy draw above the limit is impossible.
        idle = np.minimum(self._gpu_idle_share * gpu.default_limit_watts, 0.98 * gpu_watts)
        busy_share = np.maximum(
            self._busy_share, np.minimum((gpu_watts - idle) / (gpu.default_limit_watts - idle), 1.0)
        )
        busy = (gpu_watts - (1.0 - busy_share) * idle) / busy_share
        log_time, log_power = self._gpu_state(candidates, busy)
        busy_time = busy_share * np.exp(log_time)
        host_clock = self._host_clock(candidates)
        time = np.maximum(busy_time + (1.0 - busy_share) / host_clock, self._hidden_host_share / host_clock)
        gpu_energy = busy_time * busy * np.exp(log_power) + (time - busy_time) * idle
        host = 1.0 - total_share
        host_power = host * (1.0 - self._host_dynamic_share * (1.0 - host_clock**2))
        power = total_share * gpu_energy / (time * gpu_watts) + host_power
        return np.log(time), np.log(power)

    def _gpu_total_share(self, reference: Reference) -> Array:
        """Return the GPUs' share of the job's power."""
        assert self._gpu is not None
        if reference.gpu_watts is None:
            possible = self._gpu.count * self._gpu.default_limit_watts / reference.watts
            return np.minimum(self._gpu_share, possible)
        share = min(1.0, reference.gpu_watts * self._gpu.count / reference.watts)
        return np.full_like(self._gpu_share, share)

    def _gpu_state(self, candidates: Sequence[OperatingPoint], busy: Array) -> tuple[Array, Array]:
        """Return the logarithms of the busy time and the busy power of a GPU, [K, J]."""
        assert self._gpu is not None and self._gpu_response is not None
        limits, column = _distinct([point.gpu_limit_watts for point in candidates])
        log_time, log_power = (
            values[:, column]
            for values in self._gpu_response.at_limit(np.minimum(self._limit_yield * limits / busy, 1.0))
        )
        clocks, column = _distinct([point.gpu_clock_mhz for point in candidates])
        if self._gpu.max_clock_mhz is None or clocks.size == 1:
            return log_time, log_power
        relative = np.minimum(clocks / (self._used_clock * self._gpu.max_clock_mhz), 1.0)
        other = (values[:, column] for values in self._gpu_response.at_clock(relative))
        return _slower(log_time, log_power, *other)

    def _host_clock(self, candidates: Sequence[OperatingPoint]) -> Array:
        """Return the relative clock of the host processors, [K, J]."""
        if self._cpu is None:
            return np.ones((1, len(candidates)))
        clock = np.minimum(self._cpu_clock(candidates), 1.0)
        if self._cpu.package_limit_watts is None:
            return clock
        limit = _values([point.package_limit_watts for point in candidates], np.inf)
        share = np.minimum(limit / self._cpu.package_limit_watts / self._used_clock, 1.0)
        return np.minimum(clock, share)

    def _cpu_job(self, candidates: Sequence[OperatingPoint], reference: Reference) -> tuple[Array, Array]:
        """Return the logarithms of time and power of a job without GPUs, [K, J]."""
        assert self._cpu is not None and self._cpu_response is not None
        log_time, log_power = self._cpu_response.at_clock(np.minimum(self._cpu_clock(candidates), 1.0))
        own = reference.package_watts or reference.watts / self._cpu.packages
        limits, column = _distinct([point.package_limit_watts for point in candidates])
        if limits.size > 1:
            share = np.minimum(self._package_yield * limits / own, 1.0)
            other = (values[:, column] for values in self._cpu_response.at_limit(share))
            log_time, log_power = _slower(log_time, log_power, *other)
        packages = min(1.0, own * self._cpu.packages / reference.watts)
        return log_time, np.log(packages * np.exp(log_power) + 1.0 - packages)

    def _cpu_clock(self, candidates: Sequence[OperatingPoint]) -> Array:
        assert self._cpu is not None
        bound = _values([point.cpu_max_mhz for point in candidates], np.inf)
        if self._cpu.base_mhz is not None:
            without = np.array([point.boost is False for point in candidates])
            bound = np.where(without, np.minimum(bound, self._cpu.base_mhz), bound)
        return bound / (self._used_cpu_clock * self._cpu.max_mhz)

    def _with_hints(
        self, candidates: Sequence[OperatingPoint], log_time: Array, log_power: Array
    ) -> tuple[Array, Array]:
        """Add the effect of the knobs without a physical model: power profiles and preferences."""
        profile = np.array([point.gpu_power_profile is not None for point in candidates])
        preference = np.array([point.cpu_epp is not None for point in candidates])
        time = log_time + profile * self._profile_time + preference * self._preference_time
        power = log_power + profile * self._profile_power + preference * self._preference_power
        return time, power


class CurvePrior:
    """Prior from a response curve of earlier measurements; elsewhere the generic prior fills in."""

    def __init__(self, base: Prior, curve: ResponseCurve, extra_error: float = 0.02) -> None:
        """Store the curve.

        Args:
            base: prior between and beyond the points of the curve.
            curve: measured responses.
            extra_error: standard deviation of a run from an earlier run of the same program, added to the
                points' own errors.
        """
        self._base, self._curve, self._extra_error = base, curve, extra_error

    def ensemble(self, candidates: Sequence[OperatingPoint], reference: Reference) -> Ensemble:
        """Return the samples of the base prior, weighted and shifted by the curve."""
        points = {item.point: item for item in self._curve.points if item.point != UNTUNED}
        extra = [point for point in points if point not in candidates]
        everywhere = (*candidates, *extra)
        base = self._base.ensemble(everywhere, reference)
        observations = [
            self._observation(index, points[point])
            for index, point in enumerate(everywhere)
            if point in points
        ]
        posterior = base.condition(observations)
        columns = len(candidates)
        return Ensemble(
            candidates,
            posterior.log_time[:, :columns],
            posterior.log_power[:, :columns],
            np.log(posterior.weights + 1e-12),
        )

    def static_point(
        self, candidates: Sequence[OperatingPoint], reference: Reference, objective: Objective
    ) -> tuple[OperatingPoint, CurveSource]:
        """Return the best point of the curve that is safe, or the base prior's point without one."""
        measured = {item.point: item for item in self._curve.points}
        posterior = self.ensemble(candidates, reference).condition()
        cost = posterior.mean_cost(objective)
        if objective.slowdown_limit is None:
            risk = posterior.cost_exceedance(objective, 1.0)
        else:
            risk = posterior.time_exceedance(1.0 + objective.slowdown_limit)
        safe = [
            (cost[index], point)
            for index, point in enumerate(candidates)
            if point in measured and risk[index] <= _MAX_STATIC_RISK and cost[index] < 1.0
        ]
        if not safe:
            return self._base.static_point(candidates, reference, objective)
        point = min(safe, key=lambda pair: pair[0])[1]
        return point, measured[point].source

    def _observation(self, index: int, item: ResponsePoint) -> Observation:
        error = float(np.hypot(item.time_error or 0.0, self._extra_error))
        return Observation(
            index, float(np.log(item.time_ratio)), float(np.log(item.power_ratio)), error, error
        )


def gpu_prior(gpu: GpuHardware) -> Prior:
    """Return the generic prior of a job on GPUs whose processors are not tuned."""
    return PhysicalPrior(gpu=gpu)


def cpu_prior(cpu: CpuHardware) -> Prior:
    """Return the generic prior of a job without GPUs."""
    return PhysicalPrior(cpu=cpu)


def joint_prior(gpu: GpuHardware, cpu: CpuHardware) -> Prior:
    """Return the generic prior of a job on GPUs whose processors are tuned as well."""
    return PhysicalPrior(gpu=gpu, cpu=cpu)


def curve_prior(base: Prior, curve: ResponseCurve) -> Prior:
    """Return a prior from measured responses, completed by a generic prior."""
    return CurvePrior(base, curve)


def _values(values: Sequence[float | None], missing: float) -> Array:
    return np.array([missing if value is None else value for value in values], dtype=np.float64)[None, :]


def _distinct(values: Sequence[float | None]) -> tuple[Array, npt.NDArray[np.intp]]:
    """Return the distinct values, with infinity for None, and the position of each value among them."""
    distinct, position = np.unique(_values(values, np.inf), return_inverse=True)
    return distinct[None, :], position.reshape(-1)


def _slower(time: Array, power: Array, other_time: Array, other_power: Array) -> tuple[Array, Array]:
    """Return the slower of two states of a device, element by element."""
    slower = other_time > time
    return np.where(slower, other_time, time), np.where(slower, other_power, power)
