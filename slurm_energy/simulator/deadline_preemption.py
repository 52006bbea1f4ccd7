"""Preemption: jobs without a deadline are interrupted in favour of jobs whose deadline is at risk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from slurm_energy.scheduling.backfill import Candidate
from slurm_energy.scheduling.preemption import Running, victims
from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.cluster import Cluster
from slurm_energy.simulator.constraints.constrained_selection import ConstrainedSelection
from slurm_energy.simulator.event_queue import EventQueue
from slurm_energy.simulator.running_jobs import RunningJob, RunningJobs
from slurm_energy.simulator.schedule_settings import Preemption, ScheduleSettings
from slurm_energy.simulator.workloads.job_demand import JobDemand
from slurm_energy.simulator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class PreemptionSelection:
    """Running jobs to interrupt so that a pending job can meet its deadline.

    Attributes:
        shape: index of the shape (resources on which the pending job may run) in which this job starts.
        victims: indices of the jobs to interrupt, in the workload.
        lost_joules: energy that the interruptions waste.
    """

    shape: int
    victims: tuple[int, ...]
    lost_joules: float


class DeadlinePreemption:
    """Simulated controller that interrupts running jobs in favour of jobs with a deadline.

    It interrupts jobs without a deadline if a pending job would otherwise miss its deadline.

    Args:
        jobs: workload with all jobs.
        cluster: the nodes of the cluster.
        rules: settings of preemption.
        runs: the running jobs.
        events: event queue, which provides the simulated time.
        demand: resources that jobs need.
        left_watts: function that returns the power in watts that is free under the budget.
        interrupt: function that interrupts a running job.
        start: function that starts a job in a shape (possible set of resources).
        constrained: selection of jobs under constraints; None if only units and power restrict jobs.
    """

    def __init__(
        self,
        jobs: Workload,
        cluster: Cluster,
        rules: Preemption,
        *,
        runs: RunningJobs,
        events: EventQueue,
        demand: JobDemand,
        left_watts: Callable[[], float],
        interrupt: Callable[[RunningJob], None],
        start: Callable[[int, int], object],
        constrained: ConstrainedSelection | None = None,
    ) -> None:
        self._jobs = jobs
        self._cluster = cluster
        self._rules = rules
        self._runs = runs
        self._events = events
        self._demand = demand
        self._left_watts = left_watts
        self._interrupt = interrupt
        self._start = start
        self._constrained = constrained

    def at_risk_s(self, job: int) -> float:
        """Return the time in seconds from which a pending job is in danger of missing its deadline."""
        return at_risk_s(self._jobs, job, self._rules)

    def run(self, pending: Iterable[int]) -> None:
        """Interrupt running jobs, and start the pending jobs that would otherwise miss their deadline.

        `pending` contains the indices of all pending jobs.

        Source: thesis, Algorithm 7.
        """
        for job in [job for job in pending if not np.isnan(self._jobs.deadline_s[job])]:
            selection = select_preemption(
                self._jobs, self._runs, self._cluster, job, self._events.now_s, self._rules
            )
            if selection is None or not self._may_start(job, selection):
                continue
            for victim in selection.victims:
                self._interrupt(self._runs.running[victim])
            self._start(job, selection.shape)

    def _may_start(self, job: int, selection: PreemptionSelection) -> bool:
        """Return whether a job may start if it interrupts the selected running jobs.

        The power budget and the constraints must permit the start when the resources of the interrupted jobs
        are free.

        Args:
            job: row of the job that is to start.
            selection: jobs to interrupt, and the resources that the job would get.
        """
        shape = selection.shape
        expected_s = self._runs.expected_s(job, shape)
        candidate = Candidate(job, shape, self._demand.need(shape), expected_s)
        held = [pair for victim in selection.victims for pair in self._runs.running[victim].allocation]
        self._cluster.release(held)
        added_watts = float(self._demand.added_watts(np.array([shape]))[0])
        keeps_floors = self._demand.keeps_floors(candidate, starts=True)
        placed = (
            self._constrained is None
            or self._constrained.place_now(job, shape, selection.victims) is not None
        )
        self._cluster.take(held)
        return placed and keeps_floors and added_watts <= self._left_watts()


def deadline_preemption(
    jobs: Workload,
    cluster: Cluster,
    settings: ScheduleSettings,
    runs: RunningJobs,
    events: EventQueue,
    demand: JobDemand,
    left_watts: Callable[[], float],
    interrupt: Callable[[RunningJob], None],
    start: Callable[[int, int], object],
    constrained: ConstrainedSelection | None,
) -> DeadlinePreemption | None:
    """Return the object that interrupts jobs so that other jobs meet their deadlines.

    Return None if the settings do not permit such interruptions.
    """
    if settings.preemption is None:
        return None
    return DeadlinePreemption(
        jobs,
        cluster,
        settings.preemption,
        runs=runs,
        events=events,
        demand=demand,
        left_watts=left_watts,
        interrupt=interrupt,
        start=start,
        constrained=constrained,
    )


def at_risk_s(jobs: Workload, job: int, rules: Preemption) -> float:
    """Return the time in seconds from which a pending job's deadline is at risk.

    This time is the deadline minus the job's shortest predicted run time and minus `rules.margin_s`. It is
    infinity for a job without a deadline.
    """
    deadline_s = float(jobs.deadline_s[job])
    if np.isnan(deadline_s):
        return float("inf")
    shapes = jobs.shapes(job)
    fastest_s = float(np.min(jobs.predicted_time_s[shapes.start : shapes.stop]))
    return deadline_s - fastest_s - rules.margin_s


def all_at_risk_s(jobs: Workload, margin_s: float) -> Floats:
    """Return the time from which each deadline is at risk, for all n jobs, shape (n,). See `at_risk_s`."""
    if not jobs.count:
        return np.zeros(0)
    fastest_s = np.minimum.reduceat(jobs.predicted_time_s, jobs.first[:-1])
    risk_s: Floats = np.where(np.isnan(jobs.deadline_s), np.inf, jobs.deadline_s - fastest_s - margin_s)
    return risk_s


def select_preemption(
    jobs: Workload, runs: RunningJobs, cluster: Cluster, job: int, now_s: float, rules: Preemption
) -> PreemptionSelection | None:
    """Return the running jobs to interrupt so that a job at risk meets its deadline.

    Of all suitable sets of jobs, the result is the set whose interruption wastes the least energy.

    The result is None if the job is not at risk, if free units suffice, or if the job would miss its deadline
    in spite of all interruptions. Source: thesis, Algorithm 7.

    Args:
        jobs: workload with all jobs.
        runs: the running jobs.
        cluster: the nodes of the cluster.
        job: row of the pending job in the workload.
        now_s: current time in seconds.
        rules: settings of preemption.
    """
    if now_s < at_risk_s(jobs, job, rules):
        return None
    left_s = float(jobs.deadline_s[job]) - now_s
    in_time = [s for s in jobs.shapes(job) if runs.left[job] * jobs.predicted_time_s[s] <= left_s]
    if any(jobs.units[shape] <= cluster.free[jobs.hardware[shape]] for shape in in_time):
        return None
    others = _interruptible(jobs, runs, now_s)
    selections = []
    for shape in in_time:
        kind = int(jobs.hardware[shape])
        selected = victims(others, kind, int(jobs.units[shape]), int(cluster.free[kind]))
        if selected is not None:
            lost = math.fsum(other.lost_joules for other in others if other.job_id in selected)
            selections.append(PreemptionSelection(int(shape), tuple(selected), lost))
    return min(
        selections,
        key=lambda selection: (selection.lost_joules, len(selection.victims), selection.shape),
        default=None,
    )


def _interruptible(jobs: Workload, runs: RunningJobs, now_s: float) -> list[Running]:
    """Return the running jobs without a deadline, each with the energy that its interruption would waste."""
    return [
        Running(
            job_id=run.job,
            hardware=int(jobs.hardware[run.shape]),
            gpus=int(jobs.units[run.shape]),
            lost_joules=runs.loss(run, now_s)[0],
        )
        for run in runs.running.values()
        if np.isnan(jobs.deadline_s[run.job])
    ]
