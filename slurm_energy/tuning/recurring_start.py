"""Operating point with which the next run of a recurring job starts, based on its earlier runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.candidates import CpuHardware, GpuHardware, Reference, gpu_limits
from slurm_energy.tuning.learned_run import LearnedRun
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.program_curve import measurements_of, program_curve
from slurm_energy.tuning.program_measurement import ProgramMeasurement, merge_repetitions, untuned_draw
from slurm_energy.tuning.response_curve import ResponsePoint

if TYPE_CHECKING:
    from slurm_energy.tuning.priors import Prior

_MAX_MEASUREMENTS: Final = 100
_MAX_CANDIDATES: Final = 64
_RECENT_RUNS: Final = 3
_MARGIN_DEVIATIONS: Final = 2.0
_UNBOUNDED: Final = 1.1
"""Assumed maximum clock as a multiple of the highest measured bound, which is below the maximum."""
_BINDING_SHARE: Final = 0.97


@dataclass(frozen=True, slots=True)
class RecurringStart:
    """Operating point with which the next run of a known program starts, from earlier runs.

    Attributes:
        point: recommended operating point.
        exploration: whether the point is tried in order to learn the program's response.
        fallback: operating point for a run that may not try out points, because another run of the program
            does so at the same time.
    """

    point: OperatingPoint
    exploration: bool
    fallback: OperatingPoint


def recurring_start(
    runs: Sequence[LearnedRun],
    objective: Objective,
    seed: Sequence[int],
    *,
    watts: float | None = None,
    gpu_watts: float | None = None,
) -> RecurringStart | None:
    """Return the operating point with which the next run of a recurring job should start.

    The result is None if the earlier runs do not suffice for a recommendation. The function may recommend
    a point that was never measured, in order to explore it. There is no such exploration if each run of
    the program measures several points itself. If numpy is missing or the power of the untuned job is
    unknown, the result is the best measured point.

    Args:
        runs: earlier runs of the program on the same kind of hardware.
        objective: objective with its slowdown limit.
        seed: seed of the random choice. The same seed gives the same start.
        watts: power of the untuned job in watts. None means that the latest earlier run that measured
            this power supplies the value.
        gpu_watts: power of one GPU of the untuned job in watts. None means that the latest earlier run
            that measured it supplies the value.
    """
    measurements = merge_repetitions(measurements_of(runs))[-_MAX_MEASUREMENTS:]
    if not measurements:
        return None
    latest = sorted(runs, key=lambda run: run.end_unix_s)
    watts = watts or _latest(run.untuned_watts for run in latest)
    gpu_watts = gpu_watts or _latest(run.untuned_gpu_watts for run in latest)
    measures_itself = any(run.points for run in latest[-_RECENT_RUNS:])
    try:
        import numpy as np

        from slurm_energy.tuning.recurrence import RecurringJob
    except ImportError:
        return _best_measured(runs, objective)
    points = _candidates(measurements, latest[-1], gpu_watts)
    if watts and not any(one.point == UNTUNED for one in measurements):
        measurements = (untuned_draw(watts, latest[-1].shape), *measurements)
    prior = _prior(points, latest[-1]) if watts else None
    if prior is None or watts is None:
        return _best_measured(runs, objective)
    ensemble = prior.ensemble(points, Reference(watts, gpu_watts))
    job = RecurringJob(ensemble, objective, np.random.default_rng(list(seed)), measurements)
    settled = job.next_point(explore=False)
    chosen = settled if measures_itself else job.next_point()
    return RecurringStart(chosen.point, chosen.exploration, settled.point)


def _latest(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return known[-1] if known else None


def _candidates(
    measurements: Sequence[ProgramMeasurement], run: LearnedRun, gpu_watts: float | None
) -> tuple[OperatingPoint, ...]:
    """Return the operating points from which the first point of a recurring job's run is chosen.

    The points are the untuned point, the points measured in earlier runs, and GPU power limits. A limit
    is included only if it is below the power that the job itself draws.
    """
    points = dict.fromkeys([UNTUNED, *(one.point for one in measurements)])
    if run.gpu_limits is not None and run.gpu_limits.min_watts < run.gpu_limits.default_watts:
        gpu = GpuHardware(max(1, run.gpus), run.gpu_limits.default_watts, run.gpu_limits.min_watts)
        bound = _BINDING_SHARE * min(gpu_watts or run.gpu_limits.default_watts, run.gpu_limits.default_watts)
        grid = (point for point in gpu_limits(gpu) if (point.gpu_limit_watts or 0.0) <= bound)
        points |= dict.fromkeys(grid)
    return tuple(points)[:_MAX_CANDIDATES]


def _prior(points: Sequence[OperatingPoint], run: LearnedRun) -> Prior | None:
    """Return the expected response of a run's hardware before any measurement (prior).

    The candidate points are the combinations of hardware settings that may be chosen. The prior describes
    power limits and clocks of GPUs, and frequencies of CPUs. The result is None if no candidate point
    sets one of these.
    """
    from slurm_energy.tuning.priors import cpu_prior, gpu_prior, joint_prior

    clocks = [point.gpu_clock_mhz for point in points if point.gpu_clock_mhz is not None]
    frequencies = [point.cpu_max_mhz for point in points if point.cpu_max_mhz is not None]
    cpu = CpuHardware(1, _UNBOUNDED * max(frequencies), min(frequencies)) if frequencies else None
    if run.gpu_limits is None or not run.gpus:
        return cpu_prior(cpu) if cpu else None
    limits = run.gpu_limits
    max_clock = _UNBOUNDED * max(clocks) if clocks else None
    gpu = GpuHardware(run.gpus, limits.default_watts, limits.min_watts, max_clock)
    return joint_prior(gpu, cpu) if cpu else gpu_prior(gpu)


def _best_measured(runs: Sequence[LearnedRun], objective: Objective) -> RecurringStart | None:
    """Return the best operating point (settings) measured in earlier runs, to start the next run.

    The best point has the lowest cost among the points that keep the slowdown limit. For this check, a
    margin for the measurement error is added to the run time.
    """
    curve = program_curve(runs, "", "")
    if curve is None:
        return None
    safe = [point for point in curve.points if objective.allows(_pessimistic_time(point))]
    costs = {point.point: objective.cost(point.time_ratio, point.power_ratio) for point in safe}
    best = min(costs, key=lambda point: costs[point], default=UNTUNED)
    best = best if costs.get(best, 1.0) < 1.0 else UNTUNED
    return RecurringStart(best, False, best)


def _pessimistic_time(point: ResponsePoint) -> float:
    """Return the relative run time at an operating point, plus a margin for its error.

    An operating point is a set of hardware settings. The run time is relative to the untuned job. The
    untuned job itself gets no margin.
    """
    error = 0.0 if point.point == UNTUNED else _MARGIN_DEVIATIONS * (point.time_error or 0.0)
    return point.time_ratio * (1.0 + error)
