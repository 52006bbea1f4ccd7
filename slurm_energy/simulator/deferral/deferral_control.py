"""Simulated deferral: a job that may start later is held until its planned start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from slurm_energy.deferral import Capacity, DeferralQueue
from slurm_energy.deferral.arrival_demand import ArrivalDemand, ArrivalHistory, arrival_demand
from slurm_energy.deferral.suspension import CheckpointableJobs, plan_suspensions
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.scheduling.registry import Policy
from slurm_energy.signals.feed import SignalFeed
from slurm_energy.simulator.cluster import Cluster
from slurm_energy.simulator.event_queue import EventKind, EventQueue
from slurm_energy.simulator.running_jobs import RunningJob, RunningJobs
from slurm_energy.simulator.schedule_settings import Deferral, ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload

_HISTORY_S = 28 * 86400.0
_MAX_ARRIVALS = 5000
_MAX_SLOTS = 5000
"""Maximum number of time slots of the capacity, as in senergyctld. Plans have at most 1345 starts."""


class DeferralControl:
    """Control loop of the simulator that delays deferrable jobs until their planned start.

    New jobs are planned when they arrive. All held jobs are planned again in each time slot, with the
    forecasts that are available then. No job is held after its latest start. Jobs that can write checkpoints
    are suspended in expensive slots.

    Args:
        deferral: deferral policy and its options.
        feed: price, carbon intensity and other signals, and their forecasts.
        settings: options of the scheduling policy.
        workload: all jobs.
        cluster: the nodes of the cluster.
        policy: scheduling policy. It chooses the shape (possible set of resources) of each job that has
            several shapes.
        runs: the running jobs.
        pending: rows of the jobs that wait for nodes. The collection changes during the simulation.
        events: the simulated clock, and the queue for events.
        release: function that makes a held job pending.
        suspend: function that ends a run; the job is held afterwards.
        left_watts: function that returns the power in watts that is free under the budget; infinity without
            a budget.
    """

    def __init__(
        self,
        deferral: Deferral,
        feed: SignalFeed,
        settings: ScheduleSettings,
        *,
        workload: Workload,
        cluster: Cluster,
        policy: Policy,
        runs: RunningJobs,
        pending: Mapping[int, None],
        events: EventQueue,
        release: Callable[[int], None],
        suspend: Callable[[RunningJob], None],
        left_watts: Callable[[], float],
    ) -> None:
        self._deferral, self._feed, self._settings = deferral, feed, settings
        self._workload, self._cluster, self._policy = workload, cluster, policy
        self._runs, self._pending, self._events = runs, pending, events
        self._release, self._suspend, self._left_watts = release, suspend, left_watts
        self._latest_s = workload.latest_start_s(np.arange(workload.count))
        self._size = workload.sizes(cluster.total)
        self._shape = workload.first[:-1].copy()
        self._new: list[int] = []
        self._cycle_due = False
        self._arrived = 0
        self._held_since_s: dict[int, float] = {}
        self._held_s = runs.held_s = np.zeros(workload.count)
        self.held: dict[int, float] = {}
        self.suspensions = np.zeros(workload.count, np.int64)

    def started(self, job: int, shape: int) -> None:
        """Record that the job in row `job` has started.

        The job runs on the resources (shape) in row `shape` of the table of shapes.
        """
        self._shape[job] = shape
        if self._deferral.options.suspend and self._workload.checkpointable[job]:
            self._request_cycle()

    def takes(self, job: int) -> bool:
        """Hold an arriving job and return True. If the job is not deferrable, only return False."""
        self._arrived = job + 1
        if not self._latest_s[job] > self._events.now_s:
            return False
        if not self._new:
            self._events.add(self._events.now_s, EventKind.DEFERRAL, self._plan_new, None)
        self._new.append(job)
        self.held[job] = math.inf
        self._held_since_s[job] = self._events.now_s
        return True

    def _plan_new(self, _: None) -> None:
        # If a job arrives at the start of a time slot, `_cycle` runs first and may release the job.
        new, self._new = [job for job in self._new if job in self.held], []
        self._plan(new)
        self._request_cycle()

    def _request_cycle(self) -> None:
        if not self._cycle_due and (self.held or self._may_suspend()):
            slot_s = self._deferral.options.slot_s
            next_s = (math.floor(self._events.now_s / slot_s) + 1) * slot_s
            self._cycle_due = True
            self._events.add(next_s, EventKind.DEFERRAL, self._cycle, None)

    def _may_suspend(self) -> bool:
        running = self._runs.running
        return self._deferral.options.suspend and any(self._workload.checkpointable[job] for job in running)

    def _cycle(self, _: None) -> None:
        """Plan the starts of all held jobs again. This happens at the start of each time slot."""
        self._cycle_due = False
        if self._deferral.options.suspend:
            self._suspend_expensive()
        self._plan(list(self.held))
        self._request_cycle()

    def _due(self, job: int) -> None:
        """Release a deferred job if its planned start has come.

        Nothing is done if a later plan has moved the start.
        """
        if self.held.get(job, math.inf) <= self._events.now_s:
            del self.held[job]
            # As on a live cluster, held time is not waiting time: a job with slack gains no priority.
            self._held_s[job] += self._events.now_s - self._held_since_s.pop(job)
            self._release(job)

    def _plan(self, jobs: list[int]) -> None:
        if not jobs:
            return
        now_s = self._events.now_s
        rows = np.array(jobs, np.int64)
        others = [job for job in self.held if job not in set(jobs)]
        waiting = np.fromiter(self._pending, np.int64, len(self._pending))
        queue = self._queue(np.concatenate([waiting, rows]), len(waiting), others)
        plan = self._deferral.policy.plan(queue, self._deferral.options)
        for job, start_s in zip(jobs, plan.start_s[len(waiting) :].tolist(), strict=True):
            self.held[job] = start_s
            if start_s <= now_s:
                self._due(job)
            elif (
                start_s
                < math.floor(now_s / self._deferral.options.slot_s + 1) * self._deferral.options.slot_s
            ):
                self._events.add(start_s, EventKind.DEFERRAL, self._due, job)

    def _queue(self, rows: Ints, urgent: int, others: list[int]) -> DeferralQueue:
        """Return the table of jobs from which the deferral policy plans the starts of deferrable jobs.

        Args:
            rows: indices in the workload of the jobs that the table contains.
            urgent: number of jobs at the beginning of `rows` that cannot be deferred, because they are
                already pending.
            others: held jobs that are not in the table and keep their planned start. Their resources are
                subtracted from the capacity.
        """
        now_s, work = self._events.now_s, self._workload
        self._choose_shapes(rows[urgent:])
        shapes = self._shape[rows]
        latest_s = self._latest_s[rows].copy()
        latest_s[:urgent] = np.nan
        planned_s = np.array([self.held.get(job, math.inf) for job in rows.tolist()])
        planned_s[np.isinf(planned_s)] = np.nan
        return DeferralQueue(
            now_s=now_s,
            job_id=work.job_id[rows],
            earliest_s=np.full(len(rows), now_s),
            latest_start_s=latest_s,
            time_s=np.maximum(1e-3, self._runs.left[rows] * work.predicted_time_s[shapes]),
            power_watts=work.predicted_watts[shapes],
            units=work.units[shapes].astype(np.float64),
            hardware=work.hardware[shapes],
            checkpointable=work.checkpointable[rows] != 0,
            signals=self._feed.columns(now_s),
            capacity=self._capacity(float(np.nanmax(latest_s, initial=now_s)), others),
            planned_s=planned_s,
            slack_s=latest_s - work.submit_s[rows],
        )

    def _choose_shapes(self, rows: Ints) -> None:
        several = rows[np.diff(self._workload.first)[rows] > 1]
        if not len(several):
            return
        now_s = self._events.now_s
        queue, shapes = self._workload.queue(
            several, now_s, self._runs.left, self._runs.users(now_s), self._size
        )
        table = queue.alternatives
        table.possible[:] = table.gpus <= self._cluster.total[table.hardware]
        ranking = self._policy.rank(queue, self._settings.options)
        chosen = ranking.choice >= 0
        self._shape[several[chosen]] = shapes[ranking.choice[chosen]]

    def _capacity(self, until_s: float, others: list[int]) -> Capacity:
        """Return the number of units (GPUs, cores or nodes) that are free in each time slot.

        The units of running jobs are not free. The units of the deferred jobs in `others` are not free
        during the planned runs of these jobs. The number of slots is bounded. The units of a job that ends
        after the last slot, for example with a time limit of a year, are free in the last slot.
        """
        step_s = self._deferral.options.slot_s
        start_s = math.floor(self._events.now_s / step_s) * step_s
        runs = list(self._runs.running.values())
        ends = [run.start_s + run.limit_s for run in runs]
        slots = min(max(1, math.ceil((max([until_s, *ends]) - start_s) / step_s) + 1), _MAX_SLOTS)
        free = np.repeat(self._cluster.free.astype(np.float64)[:, None], slots, axis=1)
        for run, end_s in zip(runs, ends, strict=True):
            after = math.ceil((end_s - start_s) / step_s - 1e-9)
            first = min(max(0, after), slots - 1)
            free[self._workload.hardware[run.shape], first:] += self._workload.units[run.shape]
        for job in others:
            begin_s = self.held[job]
            if math.isfinite(begin_s):
                shape = self._shape[job]
                first = max(0, math.floor((begin_s - start_s) / step_s))
                end_s = begin_s + self._workload.predicted_time_s[shape] * self._runs.left[job]
                after = math.ceil((end_s - start_s) / step_s)
                free[self._workload.hardware[shape], first:after] -= self._workload.units[shape]
        left_watts = self._left_watts()
        watts = None if math.isinf(left_watts) else np.full(slots, left_watts)
        arrivals = self._arrivals(step_s, slots)
        options = self._deferral.options
        return Capacity(
            *(start_s, step_s, free, watts),
            reserve=arrivals.mean + options.reserve_weight * arrivals.deviation,
            high_reserve=arrivals.mean + options.margin_weight * arrivals.deviation,
            release_s=arrivals.hold_s / np.maximum(1, self._cluster.total),
        )

    def _arrivals(self, step_s: float, slots: int) -> ArrivalDemand:
        """Return the demand that is expected from jobs that have not arrived yet.

        The demand is given by kind of nodes and by time slot. It is extrapolated from the jobs that arrived
        recently.

        Args:
            step_s: length of a slot in seconds.
            slots: number of slots.
        """
        work, now_s = self._workload, self._events.now_s
        first = int(np.searchsorted(work.submit_s, now_s - _HISTORY_S))
        first = max(first, self._arrived - _MAX_ARRIVALS)
        rows = np.arange(first, self._arrived)
        shapes = self._shape[rows]
        # Without an arrival in the history, no row follows, and the start of the history has no effect.
        since_s = float(work.submit_s[min(first, work.count - 1)])
        history = ArrivalHistory(
            *(since_s, work.submit_s[rows], work.predicted_time_s[shapes]),
            *(work.units[shapes].astype(np.float64), work.hardware[shapes]),
            *(np.nan_to_num(work.slack_s[rows]), np.ones(len(rows))),
        )
        return arrival_demand(history, now_s, step_s, slots, len(self._cluster.free))

    def _suspend_expensive(self) -> None:
        """Suspend running jobs whose remaining work is cheaper in later time slots.

        Only jobs that can write checkpoints are suspended.
        """
        now_s, work = self._events.now_s, self._workload
        runs = [
            run
            for run in self._runs.running.values()
            if work.checkpointable[run.job] and run.working and not math.isnan(self._latest_s[run.job])
        ]
        if not runs:
            return
        rows = np.array([run.job for run in runs])
        left_s = np.array([self._left_s(run, now_s) for run in runs])
        whole_s = work.predicted_time_s[self._shape[rows]]
        columns = CheckpointableJobs(
            *(now_s, left_s, self._original_latest_s(rows) + whole_s, self.suspensions[rows]),
            restart_s=np.full(len(rows), self._deferral.options.restart_s),
            ran_s=np.array([now_s - run.start_s for run in runs]),
        )
        plan = plan_suspensions(
            columns, self._feed.columns(now_s), self._deferral.signal, self._deferral.options
        )
        for run in [run for run, suspended in zip(runs, plan.suspend.tolist(), strict=True) if suspended]:
            self.suspensions[run.job] += 1
            self._suspend(run)
            self.held[run.job] = math.inf
            self._held_since_s[run.job] = now_s
            self._latest_s[run.job] = self._resume_by_s(run.job)

    def _left_s(self, run: RunningJob, now_s: float) -> float:
        """Return the predicted remaining run time of a run in seconds."""
        useful_s = max(0.0, run.worked_s(now_s) - run.restart_s)
        left = max(0.0, float(self._runs.left[run.job]) - run.done - useful_s / run.whole_s)
        return left * float(self._workload.predicted_time_s[run.shape])

    def _original_latest_s(self, rows: Ints) -> Floats:
        return self._workload.latest_start_s(rows)

    def _resume_by_s(self, job: int) -> float:
        """Return the latest time at which a suspended job can resume without exceeding its slack.

        The slack is the time by which the job may be delayed.
        """
        whole_s = float(self._workload.predicted_time_s[self._shape[job]])
        end_s = float(self._original_latest_s(np.array([job]))[0]) + whole_s
        return end_s - float(self._runs.left[job]) * whole_s - self._deferral.options.restart_s
