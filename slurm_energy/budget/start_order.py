"""Order of the starts of pending jobs under power budgets.

The headroom of a budget is the power that new jobs may add. The jobs are considered in the order of
their priority. The first job that does not fit waits until enough running jobs have ended. A later
job may start earlier only if it does not delay this waiting job. There is no delay in two cases: the
later job ends before the expected start of the waiting job, or it leaves enough power for the waiting
job.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_energy.budget.admission import PowerAdmission, admit_in_order
from slurm_energy.scheduling.queue import Floats


@dataclass(frozen=True, slots=True)
class PowerRequest:
    """Power of a pending or running job that is subject to power budgets.

    Attributes:
        job_id: id of the job.
        watts: power that the job adds to the idle power of its nodes.
        budgets: indexes of the budgets that apply to the job.
        time_limit_s: time limit of a pending job, or remaining time of a running job until its time limit;
            infinity without a limit.
    """

    job_id: int
    watts: float
    budgets: tuple[int, ...]
    time_limit_s: float = math.inf


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Result of `order_starts`.

    Attributes:
        startable: jobs that may start.
        waiting: for each job that must wait, the index of the budget without enough power.
        delaying: waiting jobs that fit in the power that the startable jobs leave, but would delay the job
            `first`.
        first: first job that does not fit; None means that all jobs fit.
        spare_watts: power that any job may add without delaying the job `first`.
    """

    startable: frozenset[int]
    waiting: dict[int, int]
    delaying: frozenset[int] = frozenset()
    first: int | None = None
    spare_watts: float = math.inf


def order_starts(
    pending: Sequence[PowerRequest], running: Sequence[PowerRequest], headroom_watts: Sequence[float]
) -> StartOrder:
    """Decide which pending jobs may start now.

    Args:
        pending: pending jobs in the order of their priority.
        running: running jobs.
        headroom_watts: power that new jobs may add under each budget; infinity means no limit.
    """
    headroom = np.array(headroom_watts, np.float64)
    all_jobs = _admit(pending, headroom)
    if all_jobs.fits.all():
        return StartOrder(frozenset(job.job_id for job in pending), {})
    first = int(np.argmin(all_jobs.fits))
    blocked, budget = pending[first], int(all_jobs.blocking[first])
    left = _left_by(pending[:first], headroom)
    starts_in_s, spare = _start_of(blocked, budget, [*running, *pending[:first]], left[budget])
    waiting, spare_watts = {blocked.job_id: budget}, spare
    passing: list[PowerRequest] = []  # jobs that would delay the first waiting one
    for job in pending[first + 1 :]:
        delays = budget in job.budgets and job.time_limit_s > starts_in_s
        lacking = next((one for one in job.budgets if job.watts > left[one]), None)
        if delays and job.watts > spare:
            waiting[job.job_id] = budget
            passing.append(job)
        elif lacking is not None:
            waiting[job.job_id] = lacking
        else:
            spare -= job.watts if delays else 0.0
            for one in job.budgets:
                left[one] -= job.watts
    delaying = [job.job_id for job in passing if all(job.watts <= left[one] for one in job.budgets)]
    startable = frozenset(job.job_id for job in pending if job.job_id not in waiting)
    return StartOrder(startable, waiting, frozenset(delaying), blocked.job_id, spare_watts)


def _left_by(jobs: Sequence[PowerRequest], headroom: Floats) -> list[float]:
    """Return the power that remains under each budget after the start of the given jobs.

    Args:
        jobs: the jobs to start.
        headroom: power that new jobs may add under each budget. A negative value counts as 0.
    """
    left: list[float] = np.maximum(headroom, 0.0).tolist()
    for job in jobs:
        for budget in job.budgets:
            left[budget] -= job.watts
    return left


def _admit(jobs: Sequence[PowerRequest], headroom: Floats) -> PowerAdmission:
    members = np.zeros((len(headroom), len(jobs)))
    for column, job in enumerate(jobs):
        members[list(job.budgets), column] = 1.0
    watts = np.array([job.watts for job in jobs], np.float64)
    return admit_in_order(watts, members, np.maximum(headroom, 0.0))


def _start_of(
    job: PowerRequest, budget: int, running: Sequence[PowerRequest], free_watts: float
) -> tuple[float, float]:
    """Return when a waiting job can start under a power budget.

    The waiting job can start as soon as enough running jobs under the budget have ended. Running jobs are
    assumed to end at their time limits.

    Returns:
        The time in seconds, and the watts that remain free after the start; infinity and 0 if the
            waiting job cannot start even after all running jobs have ended.
    """
    ends = sorted((one.time_limit_s, one.watts) for one in running if budget in one.budgets)
    for end_s, ending in itertools.groupby(ends, key=lambda end: end[0]):
        free_watts += sum(watts for _, watts in ending)
        if free_watts >= job.watts:
            return end_s, free_watts - job.watts
    return math.inf, 0.0
