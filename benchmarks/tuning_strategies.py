"""Strategies that choose the power limit of a GPU during a simulated run.

The strategies are the search of slurm-energy and the methods with which it is compared.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from power_limit_runs import MeasuredJob, SimulatedRun

from slurm_energy.tuning.candidates import GpuHardware, Reference
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.priors import Prior, gpu_prior
from slurm_energy.tuning.program_measurement import ProgramMeasurement, untuned_draw
from slurm_energy.tuning.recurrence import RecurringJob
from slurm_energy.tuning.search import SearchOptions, TuningSearch

CONSTANT_SHARE = 0.63
"""Fixed limit of the power-capping paper, as a share of the default limit."""
TRIAL_STEPS = 10
"""Steps for each limit of the strategies that try every limit."""
DRAW_STEPS = 5
"""Untuned steps of a first run without a progress signal, in which the own draw is measured."""


@functools.cache
def _prior(default_watts: float, min_watts: float) -> Prior:
    return gpu_prior(GpuHardware(1, default_watts, min_watts))


def prior_of(job: MeasuredJob) -> Prior:
    """Return a generic prior for tuning, which knows only the range of the power limits.

    It knows nothing about any network (program) or GPU.
    """
    return _prior(job.limits[-1], job.limits[0])


def search(
    run: SimulatedRun, steps: int, window_steps: int, objective: Objective, known_length: bool
) -> tuple[SimulatedRun, TuningSearch]:
    """Run a simulated job while the search of slurm-energy tunes the job.

    Return the simulated run and the search.
    """
    points = run.job.points()
    options = SearchOptions(expected_duration_s=float(steps) if known_length else None)
    tuner = TuningSearch(points[:-1], objective, prior_of(run.job), options)
    while run.steps < steps:
        window = run.advance(points.index(tuner.requested), min(window_steps, steps - run.steps))
        tuner.observe(window)
    return run, tuner


def nearest(job: MeasuredJob, watts: float) -> int:
    """Return the index of the measured power limit that is nearest to `watts`."""
    return min(range(len(job.limits)), key=lambda index: abs(job.limits[index] - watts))


def constant(run: SimulatedRun, steps: int) -> SimulatedRun:
    """Run a simulated job under the benchmark's simplest strategy, a constant power limit.

    The limit is the measured limit nearest to a constant share of the default limit.
    """
    run.advance(nearest(run.job, CONSTANT_SHARE * run.job.limits[-1]), steps)
    return run


def best_fixed_limit(jobs: Sequence[MeasuredJob]) -> float:
    """Return the single power limit that is best for all jobs on a GPU, known only in hindsight.

    It has the smallest mean loss of energy-delay product (EDP) over the jobs.
    """
    limits = sorted({limit for job in jobs for limit in job.limits})
    losses = [np.mean([job.edp[nearest(job, limit)] / job.edp.min() for job in jobs]) for limit in limits]
    return limits[int(np.argmin(losses))]


def exhaustive(run: SimulatedRun, steps: int) -> SimulatedRun:
    """Run a simulated job with an exhaustive search, as a comparison for the real search.

    The job runs some steps at every power limit. It then runs the remaining steps at the limit with the
    lowest EDP.
    """
    costs = []
    for index in reversed(range(len(run.job.limits))):
        window = run.advance(index, min(TRIAL_STEPS, steps - run.steps))
        costs.append((window.watts / window.units_per_s**2, index))
        if run.steps >= steps:
            return run
    run.advance(min(costs)[1], steps - run.steps)
    return run


def zeus_missing() -> str | None:
    """Return why the program Zeus cannot be compared in this benchmark; None if it can."""
    try:
        import zeus.optimizer.power_limit  # noqa: F401
    except Exception as error:
        return f"zeus cannot be imported ({type(error).__name__}: {error}); pip install slurm-energy[judges]"
    return None


class _ZeusGpus:
    """Test substitute for the GPUs of a simulated run, with the interface that Zeus uses."""

    def __init__(self, job: MeasuredJob) -> None:
        self._range = (int(job.limits[0] * 1000), int(job.limits[-1] * 1000))
        self.limit_watts = job.limits[-1]

    def get_power_management_limit_constraints(self, index: int) -> tuple[int, int]:
        return self._range

    def set_persistence_mode(self, index: int, enabled: bool, block: bool = True) -> None:
        pass

    def set_power_management_limit(self, index: int, milliwatts: int, block: bool = True) -> None:
        self.limit_watts = milliwatts / 1000


class _ZeusMonitor:
    """Test substitute for the monitor of Zeus: measures time and energy of a simulated run."""

    gpu_indices = (0,)

    def __init__(self) -> None:
        self.time_s = self.joules = 0.0
        self._started = (0.0, 0.0)

    def begin_window(self, key: str, **_: Any) -> None:
        self._started = (self.time_s, self.joules)

    def end_window(self, key: str, **_: Any) -> Any:
        start_s, start_joules = self._started
        return SimpleNamespace(time=self.time_s - start_s, gpu_energy={0: self.joules - start_joules})


def zeus(run: SimulatedRun, steps: int) -> SimulatedRun:
    """Run a job under Zeus' GlobalPowerLimitOptimizer, which selects the limit with the lowest EDP.

    With the default of 40 profiled steps per limit, the optimizer does not finish within 300
    steps. Here the optimizer profiles `TRIAL_STEPS` steps after two steps of warm-up. A limit that
    was not measured is replaced by the nearest measured limit.
    """
    from zeus.optimizer import power_limit

    class LeastEdp(power_limit.OptimumSelector):
        def select(self, measurements: Any) -> int:
            return int(min(measurements, key=lambda item: item.energy * item.time).power_limit)

    logging.getLogger("zeus").setLevel(logging.ERROR)
    gpus, monitor = _ZeusGpus(run.job), _ZeusMonitor()
    # Stand-ins for the driver and for the framework (one process); the optimiser itself is the original.
    replaced: dict[str, Any] = {
        "get_gpus": lambda ensure_homogeneous=False: gpus,
        "is_distributed": lambda: False,
        "all_reduce": lambda values, operation: values,
        "atexit": SimpleNamespace(register=lambda function: None),
    }
    with mock.patch.multiple(power_limit, **replaced):
        optimizer = power_limit.GlobalPowerLimitOptimizer(
            monitor, LeastEdp(), wait_steps=1, warmup_steps=2, profile_steps=TRIAL_STEPS
        )
        while run.steps < steps:
            optimizer.on_step_begin()
            window = run.advance(nearest(run.job, gpus.limit_watts), 1)
            monitor.time_s += window.duration_s
            monitor.joules += window.duration_s * window.watts
    return run


def recurring(
    job: MeasuredJob, generator: np.random.Generator, steps: int, runs: int, objective: Objective
) -> list[SimulatedRun]:
    """Simulate several runs of a recurring job that reports no progress, and return the runs.

    Each run uses one operating point, which is chosen from the results of the earlier runs. The first run
    starts untuned, until its untuned power is known. It then continues at the operating point that the prior
    suggests. The prior is the assumed response before any measurement. The time and power of whole runs vary
    at random, as the measured runs of the job did.
    """
    points = job.points()
    first = SimulatedRun(job, generator)
    draw = first.advance(len(points) - 1, DRAW_STEPS).watts
    reference = Reference(draw, draw)
    prior = prior_of(job)
    point, _ = prior.static_point(points, reference, objective)
    known = [untuned_draw(draw, "runs")]
    learner = RecurringJob(prior.ensemble(points, reference), objective, generator, known)
    result = []
    for number in range(runs):
        run = first if number == 0 else SimulatedRun(job, generator)
        index = points.index(point)
        window = run.advance(index, steps - run.steps)
        seconds = steps / window.units_per_s * float(np.exp(generator.normal(0.0, job.time_cv)))
        watts = window.watts * float(np.exp(generator.normal(0.0, job.power_cv)))
        learner.record(
            ProgramMeasurement(points[index], seconds, watts, job.time_cv, job.power_cv, scale="runs")
        )
        point = learner.next_point().point
        result.append(run)
    return result
