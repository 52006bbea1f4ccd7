"""Priors of the tuning search: assumptions about a job's response before its points are measured.

A prior is a set of possible responses (an ensemble). It depends on the ranges of the hardware and on the
job's own untuned power. A prior is built after the untuned reference was measured, because the job's own
power decides which power limits have an effect. A limit above this power has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.candidates import CpuHardware, GpuHardware, Reference, is_gpu_limit, safe_point
from slurm_energy.tuning.decision import MARGIN
from slurm_energy.tuning.ensemble import Ensemble, EnsemblePosterior, Observation, Single
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.prior_samples import SAMPLES, prior_samples
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint

_MAX_LOSS_RISK = 0.05
_MIN_GAIN = 0.01
"""Smallest expected improvement of the objective for which a job without progress gets a setting."""
_MAX_LIMIT_RISK = 0.01
"""Maximum probability that a job without progress exceeds its slowdown limit by more than `MARGIN`."""

Column = npt.NDArray[np.intp]
State = TypeVar("State", bound=tuple[float | bool | None, ...])


class Prior(Protocol):
    """Interface of a source of assumptions about how a job responds to power settings.

    The assumptions are used before any operating point of the job has been measured.
    """

    def ensemble(self, candidates: Sequence[OperatingPoint], reference: Reference) -> Ensemble:
        """Return random samples of the job's response (time and power) at the given operating points.

        Args:
            candidates: operating points from which tuning may choose.
            reference: the untuned job, to which the responses are compared.
        """
        ...

    def static_point(
        self, candidates: Sequence[OperatingPoint], reference: Reference, objective: Objective
    ) -> tuple[OperatingPoint, CurveSource]:
        """Return a fixed operating point for a job whose progress cannot be measured.

        Such a job cannot be tuned by measurements. The second value of the result states where the operating
        point comes from.
        """
        ...


class PhysicalPrior:
    """Prior of a job's response to settings, from a physical model of GPUs and processors.

    The prior is generic: it uses no measurement of the job. In the model, a job on GPUs uses the GPU for a
    share of its time. In the rest of the time, it waits for the host. The host works before the GPU or at
    the same time, so that slow processors can starve the GPU.
    """

    def __init__(
        self, gpu: GpuHardware | None = None, cpu: CpuHardware | None = None, samples: int = SAMPLES
    ) -> None:
        """Select the samples of responses for the given kinds of device (GPU, CPU or both).

        These samples do not depend on the job.
        """
        self._gpu, self._cpu = gpu, cpu
        self._samples = prior_samples(
            has_gpu=gpu is not None,
            has_cpu=cpu is not None,
            beyond_table=cpu is not None and bool(cpu.table_mhz),
            samples=samples,
        )

    def ensemble(self, candidates: Sequence[OperatingPoint], reference: Reference) -> Ensemble:
        """Return sampled responses (time and power) of a job at the candidate operating points."""
        if self._gpu is None:
            log_time, log_power = self._cpu_job(candidates, reference)
        else:
            log_time, log_power = self._gpu_job(candidates, reference)
        return Ensemble(candidates, *self._with_hints(candidates, log_time, log_power))

    def static_point(
        self, candidates: Sequence[OperatingPoint], reference: Reference, objective: Objective
    ) -> tuple[OperatingPoint, CurveSource]:
        """Return the operating point (hardware settings) for a job whose progress cannot be measured.

        If the objective has a slowdown limit, the point is the best GPU power limit that is likely to keep
        the slowdown limit. Otherwise it is the safe point: a GPU power limit that is not far below the
        measured power of the GPUs, or no change of any setting (`safe_point`).
        """
        if objective.slowdown_limit is None or self._gpu is None or reference.gpu_watts is None:
            point = safe_point(candidates, reference, self._gpu, objective)
        else:
            point = _gpu_limit_within(self.ensemble(candidates, reference).condition(), objective)
        return point, CurveSource.GENERIC_PRIOR

    def _gpu_job(self, candidates: Sequence[OperatingPoint], reference: Reference) -> tuple[Single, Single]:
        assert self._gpu is not None
        gpu, samples = self._gpu, self._samples
        total_share = self._gpu_total_share(reference)
        gpu_watts = total_share * np.float32(reference.watts / gpu.count)
        # Busy and idle draw average to the measured draw. A busy draw above the limit is impossible.
        default_watts = np.float32(gpu.default_limit_watts)
        idle = np.minimum(samples.gpu_idle_share * default_watts, np.float32(0.98) * gpu_watts)
        busy_share = np.maximum(
            samples.busy_share, np.minimum((gpu_watts - idle) / (default_watts - idle), np.float32(1.0))
        )
        busy = (gpu_watts - (1 - busy_share) * idle) / busy_share
        log_time, log_power, gpu_column = self._gpu_state(candidates, busy)
        host_time, host_power, host_column = self._host_state(candidates)
        busy_time = busy_share * np.exp(log_time)
        busy_energy = busy_time * (busy * np.exp(log_power) - idle) * (total_share / gpu_watts)
        waiting, hidden = (1 - busy_share) * host_time, samples.hidden_host_share * host_time
        time = busy_time[:, gpu_column] + waiting[:, host_column]
        np.maximum(time, hidden[:, host_column], out=time)
        power = busy_energy[:, gpu_column] / time
        power += (idle * total_share / gpu_watts + (1 - total_share) * host_power)[:, host_column]
        return np.log(time, out=time), np.log(power, out=power)

    def _gpu_total_share(self, reference: Reference) -> Single:
        """Return the fraction of the job's power that its GPUs draw, in each sample, shape (K, 1).

        There are K samples of the parameters of the physical model. If the power of the GPUs was measured,
        the fraction is the same in all samples.
        """
        assert self._gpu is not None
        if reference.gpu_watts is None:
            possible = self._gpu.count * self._gpu.default_limit_watts / reference.watts
            return np.minimum(self._samples.gpu_share, np.float32(possible))
        share = min(1.0, reference.gpu_watts * self._gpu.count / reference.watts)
        return np.full_like(self._samples.gpu_share, share)

    def _gpu_state(self, candidates: Sequence[OperatingPoint], busy: Single) -> tuple[Single, Single, Column]:
        """Return time and power of a busy GPU at each operating point, relative to the untuned job.

        An operating point is a set of hardware settings. Several of the J operating points may put the GPU
        into the same state (power limit and clock). Time and power are computed once per state, for each of K
        samples of the job's unknown properties.

        Returns:
            Logarithms of time and power of every sample at the G distinct states of the GPU, shape (K, G)
            each. Also the index of the state at each operating point, shape (J,).
        """
        samples = self._samples
        assert self._gpu is not None and samples.gpu is not None
        states, column = _distinct([(item.gpu_limit_watts, item.gpu_clock_mhz) for item in candidates])
        limits = _values([limit for limit, _ in states], np.inf)
        share = np.minimum(samples.limit_yield * limits / busy, np.float32(1.0))
        log_time, log_power = samples.gpu.at_limit(share)
        if self._gpu.max_clock_mhz is None or all(clock is None for _, clock in states):
            return log_time, log_power, column
        clocks = _values([clock for _, clock in states], np.inf)
        used_mhz = samples.used_clock * np.float32(self._gpu.max_clock_mhz)
        other = samples.gpu.at_clock(np.minimum(clocks / used_mhz, np.float32(1.0)))
        return *_slower(log_time, log_power, *other), column

    def _host_state(self, candidates: Sequence[OperatingPoint]) -> tuple[Single, Single, Column]:
        """Return the time and power of the host processors, relative to the untuned job.

        The state of the host consists of its frequency bound, its boost setting and its package limit.
        Several candidate points can have the same state. Each distinct state is computed only once.

        Returns:
            Three arrays. The first two are the time and the power of each of the K samples of the prior at
            each of the H distinct states, shape (K, H) each. The third is the index of the state at each
            candidate, shape (J,).
        """
        states, column = _distinct(
            [(item.cpu_max_mhz, item.boost, item.package_limit_watts) for item in candidates]
        )
        clock = self._host_clock(
            [
                OperatingPoint(cpu_max_mhz=bound, boost=boost, package_limit_watts=limit)
                for bound, boost, limit in states
            ]
        )
        power = 1 - self._samples.host_dynamic_share * (1 - clock * clock)
        return np.reciprocal(clock), power, column

    def _host_clock(self, candidates: Sequence[OperatingPoint]) -> Single:
        """Return the relative clock of the processors that feed the GPUs, shape (K, J).

        There is one value for each of K samples and J candidate operating points.
        """
        if self._cpu is None:
            return np.ones((1, len(candidates)), dtype=np.float32)
        clock: Single = np.minimum(self._cpu_clock(candidates), np.float32(1.0))
        if self._cpu.package_limit_watts is None:
            return clock
        limit = _values([point.package_limit_watts for point in candidates], np.inf)
        share = limit / np.float32(self._cpu.package_limit_watts) / self._samples.used_clock
        both: Single = np.minimum(clock, share)
        return both

    def _cpu_job(self, candidates: Sequence[OperatingPoint], reference: Reference) -> tuple[Single, Single]:
        """Return sampled logarithms of time and power ratios of a job without GPUs.

        Each of the two arrays has the shape (K samples, J candidate operating points).
        """
        samples = self._samples
        assert self._cpu is not None and samples.cpu is not None
        log_time, log_power = samples.cpu.at_clock(np.minimum(self._cpu_clock(candidates), np.float32(1.0)))
        own = reference.package_watts or reference.watts / self._cpu.packages
        limits = _values([point.package_limit_watts for point in candidates], np.inf)
        if np.isfinite(limits).any():
            share = np.minimum(samples.package_yield * limits / np.float32(own), np.float32(1.0))
            log_time, log_power = _slower(log_time, log_power, *samples.cpu.at_limit(share))
        packages = np.float32(min(1.0, own * self._cpu.packages / reference.watts))
        return log_time, np.log(packages * np.exp(log_power) + 1 - packages)

    def _cpu_clock(self, candidates: Sequence[OperatingPoint]) -> Single:
        assert self._cpu is not None
        bound = _values([point.cpu_max_mhz for point in candidates], np.inf)
        if self._cpu.base_mhz is not None:
            without = np.array([point.boost is False for point in candidates])
            bound = np.where(without, np.minimum(bound, np.float32(self._cpu.base_mhz)), bound)
        return bound / (self._samples.used_cpu_clock * np.float32(self._cpu.max_mhz))

    def _with_hints(
        self, candidates: Sequence[OperatingPoint], log_time: Single, log_power: Single
    ) -> tuple[Single, Single]:
        """Add the effects of GPU power profiles and CPU energy preferences to the prior.

        The physical model does not describe these settings. Their effects are therefore assumed.
        """
        samples = self._samples
        profile = [number for number, point in enumerate(candidates) if point.gpu_power_profile is not None]
        preference = [number for number, point in enumerate(candidates) if point.cpu_epp is not None]
        for columns, time, power in (
            (profile, samples.profile_time, samples.profile_power),
            (preference, samples.preference_time, samples.preference_power),
        ):
            if columns:
                log_time[:, columns] += time
                log_power[:, columns] += power
        return log_time, log_power


class CurvePrior:
    """Prior (expectation before measurements) for tuning a job that has a measured response curve.

    The curve states time and power at several operating points (sets of hardware settings), and was
    measured in earlier runs. The generic prior applies where the curve has no points.
    """

    def __init__(self, base: Prior, curve: ResponseCurve, extra_error: float = 0.02) -> None:
        """Create a prior for a job from a measured response curve and a generic prior.

        Args:
            base: generic prior. It applies between the points of the curve and outside their range.
            curve: response curve that earlier runs have measured.
            extra_error: standard deviation between runs of the same program, which is added to the errors of
                the curve's points.
        """
        self._base, self._curve, self._extra_error = base, curve, extra_error

    def ensemble(self, candidates: Sequence[OperatingPoint], reference: Reference) -> Ensemble:
        """Return samples of how the job may respond to settings, based on a measured response curve.

        The samples first come from a prior without the curve. The measured curve then changes the weights of
        the samples and shifts them towards the curve.
        """
        points = {item.point: item for item in self._curve.points if item.point != UNTUNED}
        extra = [point for point in points if point not in candidates]
        everywhere = (*candidates, *extra)
        base = self._base.ensemble(everywhere, reference)
        observations = [
            self._observation(index, points[point])
            for index, point in enumerate(everywhere)
            if point in points
        ]
        # Later measurements may contradict the curve, and then need the samples that it makes improbable.
        posterior = base.condition(observations, min_weight=0.0)
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
        """Return the best safe point of the curve, and the source of this point.

        A safe point is a measured candidate that is expected to improve the objective. The risk of a loss,
        or of exceeding the slowdown limit, must be small. If the curve has no safe point, return a point
        that follows from the generic prior, which assumes no measurement of the program.
        """
        measured = {item.point: item for item in self._curve.points}
        posterior = self.ensemble(candidates, reference).condition()
        cost = posterior.mean_cost(objective)
        if objective.slowdown_limit is None:
            is_safe = posterior.cost_exceedance(objective, 1.0) <= _MAX_LOSS_RISK
        else:
            is_safe = _keeps_limit(posterior, objective.slowdown_limit)
        safe = [
            (cost[index], point)
            for index, point in enumerate(candidates)
            if point in measured and is_safe[index] and cost[index] < 1.0
        ]
        if safe:
            point = min(safe, key=lambda pair: pair[0])[1]
            return point, measured[point].source
        if objective.slowdown_limit is None:
            return self._base.static_point(candidates, reference, objective)
        return _gpu_limit_within(posterior, objective), CurveSource.GENERIC_PRIOR

    def _observation(self, index: int, item: ResponsePoint) -> Observation:
        error = float(np.hypot(item.time_error or 0.0, self._extra_error))
        return Observation(
            index, float(np.log(item.time_ratio)), float(np.log(item.power_ratio)), error, error
        )


def gpu_prior(gpu: GpuHardware) -> Prior:
    """Return the general expectation (prior) of how a job on GPUs responds to settings of the GPU.

    The prior is for jobs whose processor settings are not tuned.
    """
    return PhysicalPrior(gpu=gpu)


def cpu_prior(cpu: CpuHardware) -> Prior:
    """Return the expected responses (generic prior) of a job without GPUs to settings of its CPUs."""
    return PhysicalPrior(cpu=cpu)


def joint_prior(gpu: GpuHardware, cpu: CpuHardware) -> Prior:
    """Return the generic tuning prior of a job on GPUs, if its processors are tuned too.

    The prior is what is assumed about the job before any measurement.
    """
    return PhysicalPrior(gpu=gpu, cpu=cpu)


def curve_prior(base: Prior, curve: ResponseCurve) -> Prior:
    """Return the expected response (prior) of a job, from a measured response curve.

    For operating points without a measurement, the generic prior `base` is used.
    """
    return CurvePrior(base, curve)


def _keeps_limit(posterior: EnsemblePosterior, slowdown_limit: float) -> npt.NDArray[np.bool_]:
    """Return whether a job is expected to keep a slowdown limit at each operating point.

    The result has shape (J,). Two conditions must hold: the expected run time keeps the limit, and the risk
    is small. The risk is the probability that the job exceeds the limit by more than `MARGIN`. It must be at
    most `_MAX_LIMIT_RISK`.
    """
    risk = posterior.time_exceedance(1.0 + slowdown_limit + MARGIN)
    expected = posterior.mean_log_time() <= np.log1p(slowdown_limit)
    return np.asarray(expected & (risk <= _MAX_LIMIT_RISK))


def _gpu_limit_within(posterior: EnsemblePosterior, objective: Objective) -> OperatingPoint:
    """Return the GPU power limit with minimum expected cost that keeps the slowdown limit.

    The result is UNTUNED if no power limit keeps the slowdown limit. Processors and the clocks of GPUs are
    not changed.
    """
    assert objective.slowdown_limit is not None
    cost, is_safe = posterior.mean_cost(objective), _keeps_limit(posterior, objective.slowdown_limit)
    safe = [
        (cost[index], point)
        for index, point in enumerate(posterior.points)
        if is_gpu_limit(point) and is_safe[index] and cost[index] < 1.0 - _MIN_GAIN
    ]
    return min(safe, key=lambda pair: pair[0])[1] if safe else UNTUNED


def _values(values: Sequence[float | None], missing: float) -> Single:
    return np.array([missing if value is None else value for value in values], dtype=np.float32)[None, :]


def _distinct(states: Sequence[State]) -> tuple[list[State], Column]:
    """Return the given states without duplicates, and the position of each given state in this list."""
    number = {state: position for position, state in enumerate(dict.fromkeys(states))}
    return list(number), np.array([number[state] for state in states], dtype=np.intp)


def _slower(time: Single, power: Single, other_time: Single, other_power: Single) -> tuple[Single, Single]:
    """Compare two states of a device, and return the time and power of the slower state.

    The comparison is made element by element.
    """
    slower = other_time > time
    return np.where(slower, other_time, time), np.where(slower, other_power, power)
