"""State of the running jobs: allocation, progress, power and energy.

Running jobs can be interrupted or get new power limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Floats, UnitCapacity, Users
from slurm_energy.simulator.cluster import Allocation, Cluster
from slurm_energy.simulator.results.run_segments import RunSegments
from slurm_energy.simulator.results.simulation_result import EnergyAccounts, JobOutcome
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload

_LN2 = math.log(2)
ROUNDING_S = 1e-6
"""Rounding of a job's end. A job that ends within this time of its limit is not killed."""


class PowerPoint(NamedTuple):
    """Power limit of a job, and the effect of this limit.

    Attributes:
        limit_watts: power limit per unit in watts; infinity means no limit.
        time_ratio: run time under the limit divided by the run time without a limit.
        power_ratio: power under the limit divided by the power without a limit.
    """

    limit_watts: float
    time_ratio: float
    power_ratio: float


UNLIMITED = PowerPoint(math.inf, 1.0, 1.0)


@dataclass(slots=True)
class RunningJob:
    """A job that holds nodes in the simulation. Times are in seconds on the simulated clock.

    Attributes:
        job: row of the job in the workload.
        shape: row of the shape (way to run the job) in the workload.
        allocation: units of nodes that the job holds.
        start_s: time at which the job got its nodes.
        ready_s: time at which the job's last node is on and its work begins.
        end_s: time at which the job's work will be done.
        kill_s: time at which the job is killed; infinity means never.
        limit_s: seconds for which the job is expected to hold its nodes, from `start_s` on.
        watts: power while the job works.
        extra_watts: `watts` minus the idle power of the job's units; may be negative.
        whole_s: run time of the whole job under the current power limit.
        point: the current power limit and its effect.
        restart_s: seconds at the start of the run in which the job restarts after an interruption, without
            progress.
        earlier: intervals of the run under earlier power limits, in order. Each entry has three values: the
            seconds of work, the run time in seconds that the whole job would have under that limit, and the
            power in watts.
        done: fraction of the whole job's work that was done in the intervals of `earlier`.
        restart_joules: energy of restarts under earlier power limits.
        working: whether the job draws power. The job may not draw power yet at `ready_s`, because other
            events of this time may be processed first.
    """

    job: int
    shape: int
    allocation: Allocation
    start_s: float
    ready_s: float
    end_s: float
    kill_s: float
    limit_s: float
    watts: float
    extra_watts: float
    whole_s: float
    point: PowerPoint = UNLIMITED
    restart_s: float = 0.0
    earlier: list[tuple[float, float, float]] = field(default_factory=list)
    done: float = 0.0
    restart_joules: float = 0.0
    working: bool = False

    def worked_s(self, now_s: float) -> float:
        """Return the seconds for which the job has computed in this run until `now_s`.

        Time before the job was ready to compute is not included.
        """
        return max(0.0, now_s - self.ready_s)


class RunningJobs:
    """All running jobs with their power, and the energy accounts of jobs and users.

    A unit is a GPU, node or core that a job occupies.

    Attributes:
        running: running jobs by row of the job in the workload.
        accounts: energy accounts of all n jobs.
        left: fraction of each job's work that remains, shape (n,).
        held_s: time for which each job was held by deferral, shape (n,); None if no job is held.
        watts: power that all running jobs add to the idle power of their units.
        lent_watts: reduction of `watts` by jobs that draw less power than their units draw when idle. This
            power is needed again when these jobs end.
        joules: energy of all finished runs.
        segments: record of the intervals in which jobs drew power; None if the simulation has no signals.
    """

    def __init__(self, workload: Workload, cluster: Cluster, settings: ScheduleSettings) -> None:
        self._workload = workload
        self._cluster = cluster
        self._settings = settings
        self.running: dict[int, RunningJob] = {}
        self.accounts = EnergyAccounts.empty(workload.count)
        self.left: Floats = np.ones(workload.count)
        self.held_s: Floats | None = None
        self.watts, self.lent_watts = 0.0, 0.0
        users = len(workload.users)
        self._units, self._watts = np.zeros(users), np.zeros(users)
        self._unit_s, self._joules = np.zeros(users), np.zeros(users)
        self._settled_s = 0.0
        self._resume_s: dict[int, float] = {}
        self.segments = None if settings.signals is None else RunSegments()
        idle_watts = np.array([kind.unit_idle_watts for kind in cluster.kinds])
        self._extra_watts: Floats = workload.power_watts - idle_watts[workload.hardware] * workload.units
        self._shares = np.array([settings.shares.get(name, 1.0) for name in workload.users])

    def start(
        self,
        job: int,
        shape: int,
        allocation: Allocation,
        now_s: float,
        ready_s: float,
        point: PowerPoint = UNLIMITED,
    ) -> RunningJob:
        """Start a job on the given units of nodes, e.g. GPUs.

        The job draws power only after `work` is called.

        Args:
            job: row of the job in the workload.
            shape: row of the shape (way to run the job) that the job uses.
            allocation: nodes, and the number of units that the job gets on each of them.
            now_s: current time in seconds.
            ready_s: time in seconds at which the job's work begins.
            point: power limit with which the job starts, and the effect of this limit.
        """
        workload, accounts = self._workload, self.accounts
        restart_s = self._restart_s(job)
        self._resume_s.pop(job, None)
        whole_s = float(workload.time_s[shape]) * point.time_ratio
        left = float(self.left[job])
        watts = float(workload.power_watts[shape]) * point.power_ratio
        run = RunningJob(
            job=job,
            shape=shape,
            allocation=allocation,
            start_s=now_s,
            ready_s=ready_s,
            end_s=ready_s + restart_s + left * whole_s,
            kill_s=ready_s + self._kill_after_s(job),
            limit_s=ready_s - now_s + self.expected_s(job, shape, point),
            watts=watts,
            extra_watts=self._extra_at(shape, watts),
            whole_s=whole_s,
            point=point,
            restart_s=restart_s,
        )
        self.running[job] = run
        accounts.shape[job], accounts.outcome[job] = shape, JobOutcome.RUNNING
        if np.isnan(accounts.start_s[job]):
            accounts.start_s[job] = now_s
        return run

    def expected_s(self, job: int, shape: int, point: PowerPoint = UNLIMITED) -> float:
        """Return the seconds for which a job is expected to work if it starts now.

        Args:
            job: row of the job in the workload.
            shape: row, in the workload, of the shape (way to run the job) in which the job starts.
            point: power limit with which the job starts, and the effect of this limit on time and power.
        """
        whole_s = self._workload.limit_s(job, shape) * self._expected_ratio(job, point)
        if self._kill_after_s(job) < math.inf:
            return whole_s  # Slurm grants a requeued job the whole time limit again
        return self._restart_s(job) + float(self.left[job]) * whole_s

    def _kill_after_s(self, job: int) -> float:
        """Return the seconds of work after which a job is killed; infinity if the job is never killed."""
        limit_s = float(self._workload.time_limit_s[job])
        return limit_s if self._settings.kill_at_limit and limit_s == limit_s else math.inf

    def _restart_s(self, job: int) -> float:
        """Return the seconds by which a restart lengthens the next run of an interrupted job."""
        if job in self._resume_s:
            return self._resume_s[job]
        restarted = self.accounts.preemptions[job] + self.accounts.failures[job] > 0
        preemption = self._settings.preemption
        return preemption.restart_s if restarted and preemption else 0.0

    def work(self, run: RunningJob, now_s: float) -> None:
        """Mark that a running job begins to compute.

        From the time `now_s` on, the job draws power and adds to the usage of its user.
        """
        run.working = True
        self._rate(run, now_s, 1.0)

    def finish(self, run: RunningJob, now_s: float) -> None:
        """End a run whose work is done, or that is killed at its time limit."""
        self._stop(run, now_s)
        self.left[run.job] = 0.0
        killed = run.end_s > now_s + ROUNDING_S
        self.accounts.end_s[run.job] = now_s
        self.accounts.outcome[run.job] = JobOutcome.TIMEOUT if killed else JobOutcome.COMPLETED

    def interrupt(self, run: RunningJob, now_s: float, *, failure: bool) -> None:
        """End a run before its work is done. Work up to the last checkpoint is kept.

        Args:
            run: the running job.
            now_s: current time in seconds.
            failure: whether a node failure is the reason; otherwise the job is preempted.
        """
        lost_joules, saved = self.loss(run, now_s)
        self._abort(run, now_s, lost_joules, saved)
        self.accounts.preemptions[run.job] += not failure
        self.accounts.failures[run.job] += failure

    def suspend(self, run: RunningJob, now_s: float, restart_s: float) -> None:
        """End a run after a checkpoint that saves all work of the run.

        Args:
            run: the running job.
            now_s: current time in seconds.
            restart_s: extra time of the next start, for the checkpoint and the restart.
        """
        lost_joules, saved = self.loss(run, now_s, checkpoint_s=0.0)
        self._abort(run, now_s, lost_joules, saved)
        self._resume_s[run.job] = restart_s

    def _abort(self, run: RunningJob, now_s: float, lost_joules: float, saved: float) -> None:
        self._stop(run, now_s)
        self.accounts.lost_joules[run.job] += lost_joules
        self.accounts.outcome[run.job] = JobOutcome.PENDING
        self.left[run.job] -= saved

    def change_limit(self, run: RunningJob, point: PowerPoint, now_s: float) -> RunningJob:
        """Change the power limit of a running job.

        The job continues under the new limit. Its data are replaced by a new object, which is returned.

        Args:
            run: the running job.
            point: the new power limit and its effect.
            now_s: current time in seconds.
        """
        worked_s = run.worked_s(now_s)
        useful_s = max(0.0, worked_s - run.restart_s)
        run.earlier.append((useful_s, run.whole_s, run.watts))
        done = run.done + useful_s / run.whole_s
        restart_s = max(0.0, run.restart_s - worked_s)
        slower = self._expected_ratio(run.job, point) / self._expected_ratio(run.job, run.point)
        left = max(0.0, float(self.left[run.job]) - done)
        whole_s = float(self._workload.time_s[run.shape]) * point.time_ratio
        watts = float(self._workload.power_watts[run.shape]) * point.power_ratio
        self._account(run, now_s)
        new = RunningJob(
            job=run.job,
            shape=run.shape,
            allocation=run.allocation,
            start_s=now_s,
            ready_s=now_s,
            end_s=now_s + restart_s + left * whole_s,
            kill_s=run.kill_s,
            limit_s=max(0.0, run.start_s + run.limit_s - now_s) * slower,
            watts=watts,
            extra_watts=self._extra_at(run.shape, watts),
            whole_s=whole_s,
            point=point,
            restart_s=restart_s,
            earlier=run.earlier,
            done=done,
            restart_joules=run.restart_joules + (worked_s - useful_s) * run.watts,
        )
        self.running[run.job] = new
        self.work(new, now_s)
        return new

    def truncate(self, run: RunningJob, now_s: float) -> None:
        """Account for a run that has not ended when the simulation ends at `now_s`."""
        self._stop(run, now_s)

    def loss(self, run: RunningJob, now_s: float, checkpoint_s: float | None = None) -> tuple[float, float]:
        """Return the energy that is wasted if a run is interrupted now, and the work that is kept.

        Args:
            run: the running job.
            now_s: current time in seconds.
            checkpoint_s: interval of checkpoints in seconds; None means the interval in the settings.

        Returns:
            Wasted joules, and the fraction of the job's work that a checkpoint has saved.
        """
        preemption = self._settings.preemption
        if checkpoint_s is None:
            checkpoint_s = preemption.checkpoint_s if preemption else math.inf
        worked_s = run.worked_s(now_s)
        useful_s = max(0.0, worked_s - run.restart_s)
        parts = [*run.earlier, (useful_s, run.whole_s, run.watts)]
        saved_s = _saved_s(sum(seconds for seconds, _, _ in parts), checkpoint_s)
        lost_joules, saved = run.restart_joules + (worked_s - useful_s) * run.watts, 0.0
        for seconds, whole_s, watts in parts:
            kept_s = min(seconds, saved_s)
            saved += kept_s / whole_s
            lost_joules += (seconds - kept_s) * watts
            saved_s -= kept_s
        return lost_joules, saved

    def users(self, now_s: float) -> Users:
        """Return the usage of each user at the time `now_s`, with exponential decay."""
        self._settle(now_s)
        return Users(self._shares, self._unit_s.copy(), self._joules.copy())

    def capacity(self) -> UnitCapacity:
        """Return the free units (GPUs, cores or nodes) of the cluster, and the units of running jobs.

        The result also contains the expected end of each running job.
        """
        runs = list(self.running.values())
        shapes = np.array([run.shape for run in runs], np.int64)
        return UnitCapacity(
            free=self._cluster.free.copy(),
            unit_idle_watts=np.array([kind.unit_idle_watts for kind in self._cluster.kinds]),
            hardware=self._workload.hardware[shapes],
            gpus=self._workload.units[shapes],
            end_s=np.array([run.start_s + run.limit_s for run in runs]),
        )

    def extra_watts(self, shape: int) -> float:
        """Return the watts that a job adds to the cluster's power if it runs in a given shape.

        A shape is a number and kind of GPUs or nodes with which the job can run.

        Args:
            shape: row number of the shape.
        """
        return float(self._extra_watts[shape])

    def _extra_at(self, shape: int, watts: float) -> float:
        """Return the power above idle of a job that draws `watts` in a given shape.

        A shape is a way to run the job, with a kind and number of units (GPUs, nodes or cores). The idle
        power of these units is subtracted from `watts`.
        """
        return float(self._extra_watts[shape] - self._workload.power_watts[shape]) + watts

    def _expected_ratio(self, job: int, point: PowerPoint) -> float:
        """Return by which factor the scheduler expects a power limit to extend the run time of a job.

        If the job has a time limit, this limit is its expected run time, and the factor is 1.
        """
        return point.time_ratio if math.isnan(self._workload.time_limit_s[job]) else 1.0

    def _stop(self, run: RunningJob, now_s: float) -> None:
        self._account(run, now_s)
        del self.running[run.job]
        self._cluster.release(run.allocation)

    def _account(self, run: RunningJob, now_s: float) -> None:
        """Add the time and the energy of a run until `now_s` to the accounts of the simulation.

        The time is added as run time, and as unit seconds. Unit seconds are the run time multiplied by the
        number of units (such as GPUs). From `now_s` on, the run no longer counts in the power of the cluster.
        """
        worked_s = run.worked_s(now_s)
        if run.working:
            self._rate(run, now_s, -1.0)
        self.accounts.energy_joules[run.job] += worked_s * run.watts
        if self.segments is not None:
            self.segments.add(run.job, worked_s, now_s, run.watts)
        self.accounts.run_s[run.job] += now_s - run.start_s
        self.accounts.unit_s[run.job] += (now_s - run.start_s) * float(self._workload.units[run.shape])

    def _rate(self, run: RunningJob, now_s: float, sign: float) -> None:
        self._settle(now_s)
        user = self._workload.user[run.job]
        self.watts += sign * run.extra_watts
        self.lent_watts -= sign * min(0.0, run.extra_watts)
        self._units[user] += sign * self._workload.units[run.shape]
        self._watts[user] += sign * run.watts

    def _settle(self, now_s: float) -> None:
        """Update the decayed usage of every user to the time `now_s`.

        The result is exact, because the rates of use are constant between two calls and the decay is
        exponential.
        """
        elapsed_s = now_s - self._settled_s
        if elapsed_s <= 0:
            return
        half_life_s = self._settings.half_life_s
        if math.isinf(half_life_s):
            remaining, gained_s = 1.0, elapsed_s
        else:
            remaining = 2.0 ** (-elapsed_s / half_life_s)
            gained_s = (1.0 - remaining) * half_life_s / _LN2
        self._unit_s = self._unit_s * remaining + self._units * gained_s
        self._joules = self._joules * remaining + self._watts * gained_s
        self._settled_s = now_s


def _saved_s(useful_s: float, checkpoint_s: float) -> float:
    """Return how many seconds of a job's work the last checkpoint has saved.

    Args:
        useful_s: seconds of work done.
        checkpoint_s: interval of checkpoints in seconds. 0 means that all work is saved, infinity that no
            work is saved.
    """
    if checkpoint_s == 0:
        return useful_s
    return 0.0 if math.isinf(checkpoint_s) else checkpoint_s * (useful_s // checkpoint_s)
