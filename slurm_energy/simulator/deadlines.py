"""Selection of the jobs to preempt for a pending job whose deadline is at risk.

The module only selects jobs. The engine interrupts them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.scheduling.preemption import Running, victims
from slurm_energy.simulator.cluster import Cluster
from slurm_energy.simulator.running_jobs import RunningJobs
from slurm_energy.simulator.schedule_settings import Preemption
from slurm_energy.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class PreemptionSelection:
    """Interruptions of running jobs by which a pending job meets its deadline.

    Attributes:
        shape: row of the shape (way to run the job) in which the pending job starts.
        victims: rows of the jobs to interrupt.
        lost_joules: energy that the interruptions waste.
    """

    shape: int
    victims: tuple[int, ...]
    lost_joules: float


def at_risk_s(jobs: Workload, job: int, rules: Preemption) -> float:
    """Return the time in seconds from which a pending job's deadline is at risk; infinity without deadline.

    It is the deadline minus the job's shortest predicted run time and minus `rules.margin_s`.
    """
    deadline_s = float(jobs.deadline_s[job])
    if np.isnan(deadline_s):
        return float("inf")
    shapes = jobs.shapes(job)
    fastest_s = float(np.min(jobs.predicted_time_s[shapes.start : shapes.stop]))
    return deadline_s - fastest_s - rules.margin_s


def select_preemption(
    jobs: Workload, runs: RunningJobs, cluster: Cluster, job: int, now_s: float, rules: Preemption
) -> PreemptionSelection | None:
    """Return the interruptions with the lowest loss of energy by which a job at risk meets its deadline.

    The result is None if the job is not at risk, if free units suffice, or if no interruption lets the job
    meet its deadline. Source: thesis, Algorithm 7.

    Args:
        jobs: all jobs.
        runs: the running jobs.
        cluster: the nodes.
        job: row of the pending job.
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
            lost = sum(other.lost_joules for other in others if other.job_id in selected)
            selections.append(PreemptionSelection(int(shape), tuple(selected), lost))
    return min(
        selections,
        key=lambda selection: (selection.lost_joules, len(selection.victims), selection.shape),
        default=None,
    )


def _interruptible(jobs: Workload, runs: RunningJobs, now_s: float) -> list[Running]:
    """Return the running jobs without a deadline, with the energy that each would lose."""
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
