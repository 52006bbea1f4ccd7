"""Which running jobs get other power caps when the budget changes. Decides only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from slurm_energy.simulator.running_jobs import RunningJob
from slurm_energy.simulator.workload import Workload

Change = tuple[RunningJob, int]
"""A run and the shape that it goes on in."""


def lower(jobs: Workload, runs: Iterable[RunningJob], needed_watts: float) -> list[Change]:
    """Lower caps until so much power is saved, the change first that saves most per part that the job slows.

    Less is saved where there are no lower caps.
    """
    shapes = {run.job: run.shape for run in runs}
    by_job = {run.job: run for run in runs}
    steps = {job: _lower_shapes(jobs, run.shape, job) for job, run in by_job.items()}
    while needed_watts > 0:
        options = [(_worth(jobs, shapes[job], rows[0]), job) for job, rows in steps.items() if rows]
        if not options:
            break
        _, job = max(options, key=lambda option: (option[0], -option[1]))
        shape = steps[job].pop(0)
        needed_watts -= float(jobs.power_watts[shapes[job]] - jobs.power_watts[shape])
        shapes[job] = shape
    return [(run, shapes[job]) for job, run in by_job.items() if shapes[job] != run.shape]


def raise_again(jobs: Workload, runs: Iterable[RunningJob], free_watts: float) -> Iterator[Change]:
    """Give runs their chosen cap back as far as the power suffices, those first that it slows most."""
    slowed = [run for run in runs if run.chosen >= 0 and run.chosen != run.shape]
    for run in sorted(slowed, key=lambda run: (-_slowdown(jobs, run.chosen, run.shape), run.job)):
        more_watts = float(jobs.power_watts[run.chosen] - jobs.power_watts[run.shape])
        if more_watts <= free_watts:
            free_watts -= more_watts
            yield run, run.chosen


def _lower_shapes(jobs: Workload, shape: int, job: int) -> list[int]:
    """Return the shapes of a job that differ only in the cap and need less, the one of most power first."""
    rows = np.arange(jobs.first[job], jobs.first[job + 1])
    alike = np.ones(len(rows), np.bool_)
    for column in (jobs.hardware, jobs.units, jobs.batch):
        alike &= column[rows] == column[shape]
    less = rows[alike & (jobs.power_watts[rows] < jobs.power_watts[shape])]
    found: list[int] = less[np.argsort(-jobs.power_watts[less], kind="stable")].tolist()
    return found


def _slowdown(jobs: Workload, fast: int, slow: int) -> float:
    return float(jobs.time_s[slow] / jobs.time_s[fast])


def _worth(jobs: Workload, now: int, then: int) -> float:
    """Return watts saved per part of time added; what does not slow is worth most."""
    slower = max(1e-9, _slowdown(jobs, now, then) - 1)
    return float(jobs.power_watts[now] - jobs.power_watts[then]) / slower
