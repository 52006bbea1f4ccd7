"""Suspension of running jobs by requeues. The module needs numpy.

A suspended job is requeued with a later begin time, and slurmctld does not start the job before this time.
The begin time is always near. As long as the suspension lasts, senergyctld sets it again and again to a
later time. If senergyctld dies, the begin time passes and the job starts again. The module also stores the
suspensions and what is known about the suspended jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_energy.config.deferral_section import DeferralConfig
from slurm_energy.controller.deferral.capacity import requested_units, resource_kinds
from slurm_energy.controller.deferral.slack_columns import duration_column
from slurm_energy.controller.deferral.suspended_jobs import SuspendedJob
from slurm_energy.deferral import DeferralOptions, DeferralPlan, DeferralQueue, latest_start_s
from slurm_energy.deferral.resumption_room import Resumptions, has_room
from slurm_energy.deferral.suspension import CheckpointableJobs, SuspensionPlan, plan_suspensions
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.signals import SignalName
from slurm_energy.slurm.queue.columns import RUNNING, QueueColumns
from slurm_energy.slurm.queue.job_update import JobUpdater
from slurm_energy.slurm.queue.node_resources import NodeResources

MAX_PER_CYCLE = 4
"""Maximum number of jobs suspended in one cycle: many jobs that end together load storage and slurmctld."""
_REFUSED_S = 3600.0
_KEPT_S = 40 * 86400.0
_REQUEST_S = 30.0  # an scontrol of a killed process may still be under way
_MARGIN_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Running jobs that may be suspended; columns have shape (c,) for c jobs.

    Attributes:
        rows: rows in the queue.
        work_s: time for which each job has worked in all its runs, without the time that restarts cost.
        left_s: predicted remaining run time.
        latest_s: time by which the first run of each job had to start.
        deadline_s: latest start that the job's deadline permits; NaN means no deadline.
        resume_by_s: time by which each job must start again after a suspension.
        columns: values of the jobs from which the suspensions are decided.
    """

    rows: Ints
    work_s: Floats
    left_s: Floats
    latest_s: Floats
    deadline_s: Floats
    resume_by_s: Floats
    columns: CheckpointableJobs


class Suspensions:
    """Collection of the suspended jobs. Its methods also choose running jobs and suspend them.

    A job is suspended by a requeue with a later begin time.

    Args:
        updater: changes jobs.
    """

    def __init__(self, updater: JobUpdater) -> None:
        self._updater = updater
        self._settings, self._options, self._currency = DeferralConfig(), DeferralOptions(), ""
        self._suspended: dict[int, list[SuspendedJob]] = {}
        self._ended: list[SuspendedJob] = []
        self._excluded_until_s: dict[int, float] = {}

    def configure(self, settings: DeferralConfig, options: DeferralOptions, currency: str) -> None:
        """Set the parameters of the suspension of running jobs.

        The parameters are the section `[deferral]` of the configuration, the options of the deferral
        decision, and the currency of costs.
        """
        self._settings, self._options, self._currency = settings, options, currency

    def note(self, suspensions: Iterable[SuspendedJob]) -> None:
        """Record suspensions that will be requested now, or that an earlier process requested."""
        for one in suspensions:
            self._suspended.setdefault(one.job_id, []).append(one)

    def forget_failed(self, queue: QueueColumns) -> list[SuspendedJob]:
        """Forget and return the suspensions of jobs that did not take place.

        A running job is suspended by a requeue. The suspension fails if slurmctld refused the requeue, did
        not receive it, or lost it in a crash before it saved its state. Suspensions of jobs that ended
        before the requeue are also returned.
        """
        ended, self._ended = self._ended, []
        failed = [
            one
            for row, one in self._requested(queue)
            if queue.state[row] == RUNNING and queue.taken_unix_s >= one.since_s + _REQUEST_S
        ]
        self._remove(failed)
        return ended + failed

    def exclude(self, job_id: int, now_s: float, seconds: float = _KEPT_S) -> None:
        """Exclude a job from suspension for `seconds` from `now_s` on."""
        self._excluded_until_s[job_id] = now_s + seconds

    def of_rows(self, queue: QueueColumns) -> dict[int, SuspendedJob]:
        """Return the suspended jobs that are in the queue again, to continue their work.

        A job is suspended by a requeue with a later begin time. The result contains the data of the
        suspension, by row of the queue. The job in this row is pending or running.
        """
        continued = {}
        for row in np.flatnonzero(np.isin(queue.job_id, list(self._suspended))).tolist():
            run = int(queue.restart_count[row]), float(queue.submit_s[row])
            for one in self._suspended[int(queue.job_id[row])]:
                if one.precedes(*run):
                    continued[row] = one
        return continued

    def forget_old(self, now_s: float) -> None:
        """Forget suspensions that are too old to matter.

        Also forget exclusions of jobs from suspension whose time is over. Only the time counts, not the
        absence of a job from the queue. A job is also missing in the queue while its run begins or ends.
        """
        oldest_s = now_s - _KEPT_S
        self._suspended = {
            job: all_ for job, all_ in self._suspended.items() if all_ and all_[-1].since_s > oldest_s
        }
        excluded = {job: until_s for job, until_s in self._excluded_until_s.items() if until_s > now_s}
        self._excluded_until_s = excluded

    def remaining_time_s(self, queue: QueueColumns, time_s: Floats) -> Floats:
        """Return the predicted remaining run time of each job.

        If a job continues after a suspension, only its remaining work and the restart are counted.

        Args:
            queue: all jobs.
            time_s: predicted run time of the whole job, shape (n,).
        """
        left_s = time_s.copy()
        for row, one in self.of_rows(queue).items():
            left_s[row] = max(1.0, time_s[row] - one.work_s) + one.restart_s
        return left_s

    def may_suspend(self, queue: QueueColumns) -> bool:
        """Return whether the policy may suspend any of the running jobs in the queue."""
        return self._settings.suspend and bool(np.any(self._may(queue)))

    def choose(
        self,
        queue: QueueColumns,
        time_s: Floats,
        power_watts: Floats,
        nodes: Sequence[NodeResources],
        table: DeferralQueue,
        plan: DeferralPlan,
        signal: SignalName,
        limit: int,
    ) -> list[SuspendedJob]:
        """Return the running jobs to suspend now, the one with the largest saving first.

        Args:
            queue: all jobs.
            time_s: predicted run times from `remaining_time_s`.
            power_watts: predicted mean power of each job.
            nodes: nodes of the cluster. An empty sequence means that the nodes are unknown. Their resources
                are then assumed to be unlimited.
            table: the pending jobs in the form for a deferral policy.
            plan: planned starts of the pending jobs.
            signal: the signal to minimise, such as price or carbon intensity.
            limit: maximum number of jobs; never more than `MAX_PER_CYCLE`.
        """
        jobs = self._candidates(queue, time_s, table.now_s)
        chosen = plan_suspensions(jobs.columns, table.signals, signal, self._options)
        watts = power_watts[jobs.rows]
        saving = (chosen.cost_now - chosen.cost) * watts
        better = np.flatnonzero(chosen.suspend)  # before the sort, which puts unknown savings last
        wanted = better[np.argsort(-saving[better], kind="stable")][: max(0, min(MAX_PER_CYCLE, limit))]
        if not len(wanted):
            return []
        hardware, units = requested_units(queue, resource_kinds(queue, nodes))
        rows = jobs.rows[wanted]
        resumptions = Resumptions(
            *(table.now_s + jobs.left_s[wanted], chosen.resume_s[wanted]),
            *(jobs.left_s[wanted] + jobs.columns.restart_s[wanted], watts[wanted]),
            *(units[rows], hardware[rows]),
        )
        wanted = wanted[has_room(table, plan, resumptions, self._options.slot_s)]
        return [self._facts(at, queue, jobs, chosen, watts, table, signal) for at in wanted.tolist()]

    def suspend(self, queue: QueueColumns, jobs: Sequence[SuspendedJob], hold_s: float) -> list[str]:
        """Suspend recorded jobs: requeue each one, and set its begin time at most `hold_s` ahead.

        slurmctld itself delays a requeued job by the lifetime of its credentials (120 s by default). The job
        therefore does not start before its begin time is set.

        Returns:
            The failures, one line of text each.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        rows = {int(job_id): row for row, job_id in enumerate(queue.job_id.tolist())}
        names = {one.job_id: queue.scontrol_name(rows[one.job_id]) for one in jobs}
        result = self._updater.requeue(names)
        problems = [f"job {job} cannot be suspended: {why}" for job, why in result.refused.items()]
        gone = [one for one in jobs if one.job_id in result.gone]
        self._remove(gone)
        self._ended += gone
        for one in jobs:
            if one.job_id in result.done:
                begin_s = int(min(one.since_s + hold_s, one.planned_start_s, one.resume_by_s))
                held = self._updater.set_begin([one.job_id], names, begin_s)
                problems += [f"job {job} cannot be held: {why}" for job, why in held.refused.items()]
            elif one.job_id in result.refused:
                self.exclude(one.job_id, one.since_s, _REFUSED_S)
        return problems

    def _remove(self, suspensions: Iterable[SuspendedJob]) -> None:
        for one in suspensions:
            self._suspended[one.job_id].remove(one)

    def _may(self, queue: QueueColumns) -> Bools:
        """Return which running jobs may be suspended, regardless of their slack (permitted delay).

        A job array or heterogeneous job is held as a whole. Its single jobs are therefore not suspended. A
        job that was requeued for another reason is not suspended, because the time from which its slack
        counts is unknown.
        """
        checkpointable = ["ENERGY_CHECKPOINTABLE" in flags for flags in queue.flags]
        may: Bools = (queue.state == RUNNING) & queue.requeue & np.isfinite(queue.start_s)
        may &= np.array(checkpointable, np.bool_) & (queue.array_job_id == 0) & (queue.het_job_id == 0)
        may &= ~np.isin(queue.job_id, list(self._excluded_until_s))
        may &= np.isnan(queue.deadline_s) | ~np.isnan(queue.time_limit_s)  # the latest start is unknown
        may[[row for row, _ in self._requested(queue)]] = False
        may &= (queue.restart_count == 0) | np.isin(np.arange(queue.count), list(self.of_rows(queue)))
        return may

    def _requested(self, queue: QueueColumns) -> list[tuple[int, SuspendedJob]]:
        """Return the suspensions that senergyctld has requested but that the queue does not show yet.

        A suspension requeues a job. The queue shows the suspension only when it no longer lists the run that
        the requeue ends. Each suspension in the result comes with the row of its job in the queue.
        """
        requested = []
        for row in np.flatnonzero(np.isin(queue.job_id, list(self._suspended))).tolist():
            run = int(queue.restart_count[row]), float(queue.submit_s[row])
            requested += [(row, one) for one in self._suspended[int(queue.job_id[row])] if one.ends(*run)]
        return requested

    def _candidates(self, queue: QueueColumns, time_s: Floats, now_s: float) -> _Candidates:
        settings, continued = self._settings, self.of_rows(queue)
        rows: Ints = np.flatnonzero(self._may(queue))
        restart_s = duration_column(queue, "ENERGY_CHECKPOINTABLE")[rows]
        deadline_s = queue.deadline_s[rows] - queue.time_limit_s[rows] - settings.deadline_margin_s
        latest_s = self._latest_start_s(queue, rows, deadline_s)
        ran_s = np.maximum(0.0, now_s - queue.start_s[rows])
        work_s, suspensions = ran_s.copy(), np.zeros(len(rows), np.int64)
        for at, row in enumerate(rows.tolist()):
            if one := continued.get(row):
                latest_s[at], suspensions[at] = one.latest_start_s, one.suspensions
                work_s[at] = one.work_s + max(0.0, ran_s[at] - restart_s[at])
        left_s = np.maximum(0.0, time_s[rows] - ran_s)
        # Waits, suspensions and restarts together delay the job by its slack at most. slurmctld grants it its
        # full time limit again, which must end before its deadline.
        resume_s = latest_s + work_s - restart_s
        resume_s = np.where(np.isnan(deadline_s), resume_s, np.minimum(resume_s, deadline_s))
        margin_s = _MARGIN_SHARE * np.maximum(0.0, resume_s - now_s)
        margin_s = np.minimum(self._options.start_margin_s, margin_s)
        end_by_s = resume_s - margin_s + restart_s + left_s
        columns = CheckpointableJobs(now_s, left_s, end_by_s, suspensions, restart_s, ran_s)
        return _Candidates(rows, work_s, left_s, latest_s, deadline_s, resume_s, columns)

    def _latest_start_s(self, queue: QueueColumns, rows: Ints, deadline_s: Floats) -> Floats:
        """Return the latest permitted start of each job in its first run; NaN without a limit.

        The permitted delay (slack) counts from the submission. This also holds for a job whose user
        requested a later begin time, because slurmctld no longer shows the requested time.
        """
        submit_s, slack_s = queue.submit_s[rows], duration_column(queue, "ENERGY_SLACK")[rows]
        if not self._settings.deadline_is_slack:
            deadline_s = np.where(np.isnan(slack_s), np.nan, deadline_s)
        return latest_start_s(submit_s, slack_s, deadline_s, np.zeros(len(rows)), self._settings.max_slack_s)

    def _facts(
        self,
        at: int,
        queue: QueueColumns,
        jobs: _Candidates,
        chosen: SuspensionPlan,
        watts: Floats,
        table: DeferralQueue,
        signal: SignalName,
    ) -> SuspendedJob:
        row, planned_s, signals = int(jobs.rows[at]), float(chosen.resume_s[at]), table.signals
        deadline_s = float(jobs.deadline_s[at])
        return SuspendedJob(
            *(int(queue.job_id[row]), float(queue.submit_s[row]), int(queue.restart_count[row])),
            since_s=table.now_s,
            suspensions=int(jobs.columns.suspensions[at]) + 1,
            latest_start_s=float(jobs.latest_s[at]),
            deadline_start_s=None if math.isnan(deadline_s) else deadline_s,
            work_s=float(jobs.work_s[at]),
            restart_s=float(jobs.columns.restart_s[at]),
            resume_by_s=float(jobs.resume_by_s[at]),
            planned_start_s=min(planned_s, float(jobs.resume_by_s[at])),
            policy=self._settings.policy,
            currency=self._currency,
            unit="g" if signal is SignalName.CARBON else "currency",
            cost_now=float(chosen.cost_now[at] * watts[at]),
            cost_planned=float(chosen.cost[at] * watts[at]),
            signal_now=None if signals is None else signals.at(signal, table.now_s),
            signal_planned=None if signals is None else signals.at(signal, planned_s),
        )
