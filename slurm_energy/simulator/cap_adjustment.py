"""Selection of the running jobs whose power caps are lowered or restored when the power budget changes.

The module only selects changes. The engine carries them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from slurm_energy.simulator.running_jobs import RunningJob
from slurm_energy.simulator.workload import Workload

Change = tuple[RunningJob, int]
"""A running job and the shape in which it continues."""


def lower_caps(jobs: Workload, runs: Iterable[RunningJob], needed_watts: float) -> list[Change]:
    """Return changes of power caps that together save at least `needed_watts` of power.

    Changes with the largest saving per increase in run time are chosen first. If no lower caps are left, the
    changes save less than `needed_watts`.

    Args:
        jobs: all jobs.
        runs: the running jobs whose caps may be lowered.
        needed_watts: power to save.

    Returns:
        Each running job to change, with the row of its new shape (way to run the job).
    """
    shapes = {run.job: run.shape for run in runs}
    by_job = {run.job: run for run in runs}
    steps = {job: _lower_shapes(jobs, run.shape, job) for job, run in by_job.items()}
    while needed_watts > 0:
        options = [
            (_watts_per_slowdown(jobs, shapes[job], rows[0]), job) for job, rows in steps.items() if rows
        ]
        if not options:
            break
        _, job = max(options, key=lambda option: (option[0], -option[1]))
        shape = steps[job].pop(0)
        needed_watts -= float(jobs.power_watts[shapes[job]] - jobs.power_watts[shape])
        shapes[job] = shape
    return [(run, shapes[job]) for job, run in by_job.items() if shapes[job] != run.shape]


def restore_caps(jobs: Workload, runs: Iterable[RunningJob], free_watts: float) -> Iterator[Change]:
    """Yield changes that restore original power caps within `free_watts`, the most slowed job first."""
    slowed = [run for run in runs if run.chosen >= 0 and run.chosen != run.shape]
    for run in sorted(slowed, key=lambda run: (-_slowdown(jobs, run.chosen, run.shape), run.job)):
        more_watts = float(jobs.power_watts[run.chosen] - jobs.power_watts[run.shape])
        if more_watts <= free_watts:
            free_watts -= more_watts
            yield run, run.chosen


def _lower_shapes(jobs: Workload, shape: int, job: int) -> list[int]:
    """Return the shapes that differ from `shape` only by a lower power cap, highest power first.

    A shape is a way to run a job: kind of nodes, number of units, batch size and power cap.
    """
    rows = np.arange(jobs.first[job], jobs.first[job + 1])
    alike = np.ones(len(rows), np.bool_)
    for column in (jobs.hardware, jobs.units, jobs.batch):
        alike &= column[rows] == column[shape]
    less = rows[alike & (jobs.power_watts[rows] < jobs.power_watts[shape])]
    ordered: list[int] = less[np.argsort(-jobs.power_watts[less], kind="stable")].tolist()
    return ordered


def _slowdown(jobs: Workload, fast: int, slow: int) -> float:
    """Return the run time of a job in the shape `slow` divided by that in the shape `fast`."""
    return float(jobs.time_s[slow] / jobs.time_s[fast])


def _watts_per_slowdown(jobs: Workload, now: int, then: int) -> float:
    """Return the watts saved per relative increase in run time if a job changes from shape `now` to `then`.

    The value is very high for a change that does not increase the run time.
    """
    slower = max(1e-9, _slowdown(jobs, now, then) - 1)
    return float(jobs.power_watts[now] - jobs.power_watts[then]) / slower
