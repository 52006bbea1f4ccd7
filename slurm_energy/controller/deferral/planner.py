"""Planning of the starts of deferrable jobs.

The begin time of a job holds the job until its planned start. The module uses numpy.

The deferral policies in `slurm_energy.deferral` decide. This module gives the policies the queue and the free
resources, and carries out the plan that a policy returns. Methods wait for Slurm's commands: call the methods
in one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from slurm_energy.accounting.history.arrivals import PastArrival
from slurm_energy.config import Config
from slurm_energy.controller.deferral.begin_holds import BeginTimeHolds, pending_name
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.deferral.deferral_cycle import DeferralCycle
from slurm_energy.controller.deferral.held_share import shared_fairly
from slurm_energy.controller.deferral.jobs import DeferredJob
from slurm_energy.controller.deferral.policy_options import policy_options
from slurm_energy.controller.deferral.requested_begin_times import (
    CHANGED_S,
    RequestedBeginTimes,
    note_later_begin,
)
from slurm_energy.controller.deferral.slack_columns import duration_column
from slurm_energy.controller.deferral.suspended_jobs import SuspendedJob
from slurm_energy.controller.deferral.suspensions import Suspensions
from slurm_energy.controller.deferral.table import DeferrableRows, deferral_table, may_wait
from slurm_energy.deferral import (
    DeferralPlan,
    DeferralQueue,
    DeferralReason,
    latest_start_s,
    policy,
)
from slurm_energy.errors import UnavailableError
from slurm_energy.priority.prediction import HistoryPredictor, QueuePredictor
from slurm_energy.priority.prediction_guard import Mispredictions, PredictionGuard
from slurm_energy.priority.scheduling_tables import add_components, leader_rows
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.signals import SignalColumns, SignalName
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns, QueueSource
from slurm_energy.slurm.queue.job_update import JobUpdater
from slurm_energy.slurm.queue.node_resources import NodeResources
from slurm_energy.slurm.queue.squeue_source import group_job_ids

_SIGNALS = {"g": SignalName.CARBON}


class DeferralPlanner:
    """Planner that decides when deferrable jobs start, and holds them until then.

    Args:
        config: configuration; section `deferral` and the sections that predictions need are used.
        source: reads the queue.
        updater: changes jobs.
        begin_times: begin times of jobs that senergyctld has moved. Power budgets and quotas also delay
            jobs, and share this object.
        history: predictions from measured runs; None means that there is no history.
        nodes: returns the nodes' resources; the nodes are read in cycles with deferrable jobs only.

    Attributes:
        jobs: facts about the pending jobs that are or were deferred, by job id.
        suspensions: collection of the suspended jobs, which also suspends jobs.
        arrivals: past jobs. The resources that future jobs will need are forecast from these jobs.

    Raises:
        NotFoundError: the deferral policy is unknown.
    """

    def __init__(
        self,
        config: Config,
        source: QueueSource,
        updater: JobUpdater,
        begin_times: BeginTimes,
        history: HistoryPredictor | None,
        nodes: Callable[[], Sequence[NodeResources]],
    ) -> None:
        self._source, self._nodes = source, nodes
        self._history, self._updater = history, updater
        self._holds = BeginTimeHolds(updater, begin_times)
        self._opted_out: set[int] = set()
        self._requested = RequestedBeginTimes()
        self.suspensions = Suspensions(updater)
        self._continued: dict[int, SuspendedJob] = {}
        self.jobs: dict[int, DeferredJob] = {}
        self.arrivals: Sequence[PastArrival] = ()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use a new configuration from the next cycle on.

        Raises:
            NotFoundError: the deferral policy is unknown.
        """
        self._settings, self._currency = config.deferral, config.price.currency
        self._policy = policy(config.deferral.policy)
        guard = PredictionGuard(Mispredictions(), None)
        self._predictor = QueuePredictor(config, self._history, guard)
        self._options = policy_options(config.deferral)
        self.suspensions.configure(self._settings, self._options, self._currency)

    def stop(self) -> None:
        """Stop the changes of jobs in Slurm, if another thread is making them."""
        self._updater.stop()

    @property
    def held(self) -> int:
        """Number of job records that are held in slurmctld."""
        return len(self._holds.jobs)

    def plan(self, signals: SignalColumns, now_s: float) -> DeferralCycle:
        """Read the queue and plan the starts of the deferrable jobs. Change nothing in Slurm.

        Args:
            signals: forecasts of price and carbon intensity.
            now_s: current time in Unix seconds.

        Raises:
            UnavailableError: slurmctld does not answer.
            UsageError: a deferral policy of the site failed.
        """
        queue = self._source.read()
        leader = leader_rows(queue)
        group = group_job_ids(queue.job_id, queue.array_job_id, queue.het_job_id)
        failed = self.suspensions.forget_failed(queue)
        self._adopt(queue, group, now_s)
        self._note_changes_by_users(queue, group)
        cycle = DeferralCycle(now_s, queue, leader, group, not_suspended=failed)
        rows, eligible_s, latest_s = self._deferrable(queue, leader, group, now_s)
        cycle.deferrable = len(rows)
        if len(rows) or self.suspensions.may_suspend(queue):
            plan, table = self._make_plan(cycle, rows, eligible_s, latest_s, signals)
            self._use_plan(cycle, rows, eligible_s, plan, table)
        return cycle

    def apply(self, cycle: DeferralCycle) -> tuple[list[DeferredJob], tuple[str, ...]]:
        """Hold and release jobs as planned.

        Returns:
            The facts of jobs that this cycle releases, and the failures, one line each.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        queue, now_s = cycle.queue, cycle.now_s
        self.suspensions.note(cycle.suspended)
        pending = [row for row in range(queue.count) if queue.state[row] == PENDING and not queue.held[row]]
        self._holds.set_names({int(queue.job_id[row]): pending_name(queue, row) for row in pending})
        begin_s = dict(zip(queue.job_id.tolist(), queue.eligible_s.tolist(), strict=True))
        members: dict[int, list[int]] = {}
        for row in pending:
            members.setdefault(int(cycle.group[row]), []).append(int(queue.job_id[row]))
        until_s: dict[int, float] = {}
        for job in cycle.wanted:
            end_s = min(job.planned_start_s, job.latest_start_s)
            until_s |= dict.fromkeys(members.get(job.job_id, ()), end_s)
        problems = self._holds.hold(list(until_s), begin_s, now_s, until_s, self._settings.hold_s)
        if cycle.suspended:
            failures = self.suspensions.suspend(queue, cycle.suspended, self._settings.hold_s)
            problems = (*problems, *failures)
        return self._note_ends(cycle), problems

    def release_all(self, now_s: float) -> tuple[list[DeferredJob], tuple[str, ...]]:
        """Release every held job.

        Return the released jobs and the failures. Each failure is one line of text.

        Raises:
            UnavailableError: slurmctld does not answer. The jobs then start when their begin times pass.
        """
        problems = self._holds.release(None, now_s)
        ended = [job for job in self.jobs.values() if job.held_since_s is not None]
        for job in ended:
            job.end_hold(now_s)
        return ended, problems

    def _adopt(self, queue: QueueColumns, group: Ints, now_s: float) -> None:
        """Take over the deferred jobs that an earlier senergyctld process held.

        Jobs that no longer wait in the queue are forgotten.
        """
        rows = np.flatnonzero(queue.state == PENDING).tolist()
        pending = {int(group[row]): row for row in reversed(rows)}
        for job_id, job in list(self.jobs.items()):
            row = pending.get(job_id)
            if row is None or not job.is_of(job_id, float(queue.submit_s[row])):
                del self.jobs[job_id]
                continue
            begin_s, record = float(queue.eligible_s[row]), int(queue.job_id[row])
            if job.held_since_s is not None and record not in self._holds.moved_jobs:
                if now_s < begin_s <= now_s + self._settings.hold_s + CHANGED_S:
                    self._holds.adopt(record, begin_s, now_s)
                else:
                    job.end_hold(now_s)
            if job.held_since_s is None:
                is_moved = self._holds.may_have_moved(record, begin_s, now_s)
                note_later_begin(job, begin_s, now_s, self._settings.hold_s, is_moved=is_moved)
        self.suspensions.forget_old(now_s)
        self._continued = self.suspensions.of_rows(queue)
        for row in self._continued:
            record, begin_s = int(queue.job_id[row]), float(queue.eligible_s[row])
            if queue.state[row] == PENDING and begin_s > now_s and record not in self._holds.moved_jobs:
                self._holds.adopt(record, begin_s, now_s)
        records = {int(queue.job_id[row]) for row in rows}
        self._opted_out &= records
        self._requested.keep(pending)

    def _note_changes_by_users(self, queue: QueueColumns, group: Ints) -> None:
        """Take over begin times that users have set after senergyctld had moved the begin of their job.

        If a user has set an earlier begin time than senergyctld, the job is no longer held.
        """
        times = self._holds.times
        with times.lock:
            for row in np.flatnonzero(queue.state == PENDING).tolist():
                job_id, begin_s = int(queue.job_id[row]), float(queue.eligible_s[row])
                moved = times.moved.get(job_id)
                if moved is None or moved.changed_s > queue.taken_unix_s - CHANGED_S:
                    continue
                if begin_s > moved.set_s + CHANGED_S:
                    moved.original_s = moved.set_s = begin_s
                    if job := self.jobs.get(int(group[row])):
                        job.eligible_s = begin_s
                elif begin_s < moved.set_s - CHANGED_S and job_id in self._holds.jobs:
                    self._opted_out.add(job_id)
                    self.suspensions.exclude(job_id, queue.taken_unix_s)
                    self._holds.forget(job_id)

    def _deferrable(
        self, queue: QueueColumns, leader: Ints, group: Ints, now_s: float
    ) -> tuple[Ints, Floats, Floats]:
        """Return the jobs that may start later than now, as three arrays.

        The arrays contain the row of each job in the queue, the time from which the job could start, and its
        latest permitted start.
        """
        slack_s, deadline_s = duration_column(queue, "ENERGY_SLACK"), queue.deadline_s
        has_slack = ~(np.isnan(slack_s) & np.isnan(deadline_s))
        may = may_wait(queue, leader, self._opted_out, self._continued)
        rows: Ints = np.flatnonzero(may & has_slack)
        eligible_s = np.array([self._eligible_s(queue, group, row) for row in rows.tolist()], np.float64)
        margin_s = self._settings.deadline_margin_s
        deadline_s = deadline_s[rows] - margin_s
        if not self._settings.deadline_is_slack:  # a deadline then only limits the slack
            deadline_s = np.where(np.isnan(slack_s[rows]), np.nan, deadline_s)
        latest_s = latest_start_s(
            eligible_s, slack_s[rows], deadline_s, queue.time_limit_s[rows], self._settings.max_slack_s
        )
        for at, row in enumerate(rows.tolist()):
            if suspended := self._continued.get(row):
                eligible_s[at], latest_s[at] = queue.submit_s[row], suspended.resume_by_s
        later = latest_s > now_s
        return rows[later], eligible_s[later], latest_s[later]

    def _eligible_s(self, queue: QueueColumns, group: Ints, row: int) -> float:
        """Return the time at which the job could have started without deferral, see `RequestedBeginTimes`."""
        job_id, submit_s = int(group[row]), float(queue.submit_s[row])
        job = self.jobs.get(job_id)
        record, begin_s = int(queue.job_id[row]), float(queue.eligible_s[row])
        if job is not None:
            now_s = queue.taken_unix_s
            is_own = job.held_since_s is not None or self._holds.may_have_moved(record, begin_s, now_s)
            return job.eligible_s if is_own or not begin_s > now_s + CHANGED_S else begin_s
        original_s = self._holds.times.original_s(record, begin_s)
        delay_s = self._settings.submit_delay_s
        return self._requested.eligible_s(job_id, submit_s, original_s, queue.taken_unix_s, delay_s)

    def _make_plan(
        self,
        cycle: DeferralCycle,
        rows: Ints,
        eligible_s: Floats,
        latest_s: Floats,
        signals: SignalColumns,
    ) -> tuple[DeferralPlan, DeferralQueue]:
        queue, leader, now_s = cycle.queue, cycle.leader, cycle.now_s
        predicted = add_components(queue, leader, self._predictor.predict(queue))
        time_s = self.suspensions.remaining_time_s(queue, predicted.time_s)
        try:
            nodes = self._nodes()
        except UnavailableError:
            nodes = ()
        jobs = DeferrableRows(rows, eligible_s, latest_s, self._planned_s(cycle.group[rows]))
        table = deferral_table(
            *(queue, leader, jobs, time_s, predicted.power_watts),
            *(nodes, self.arrivals, self._options, signals, now_s),
        )
        plan = self._policy.plan(table, self._options)
        if self.suspensions.may_suspend(queue):
            signal = _SIGNALS.get(plan.unit, SignalName.PRICE)
            cycle.suspended = self.suspensions.choose(
                *(queue, time_s, predicted.power_watts, nodes, table, plan, signal),
                limit=self._settings.max_held_jobs - self.held,
            )
        return plan, table

    def _planned_s(self, group: Ints) -> Floats:
        """Return the planned start of each deferred (held) job, in Unix seconds.

        `group` contains one job id per group of tasks or components that Slurm addresses together. NaN means
        that the job is not held.
        """
        known = [self.jobs.get(job_id) for job_id in group.tolist()]
        held = [job if job is not None and job.held_since_s is not None else None for job in known]
        return np.array([math.nan if job is None else job.planned_start_s for job in held], np.float64)

    def _use_plan(
        self,
        cycle: DeferralCycle,
        rows: Ints,
        eligible_s: Floats,
        plan: DeferralPlan,
        table: DeferralQueue,
    ) -> None:
        queue, signals = cycle.queue, table.signals
        assert signals is not None
        signal = _SIGNALS.get(plan.unit, SignalName.PRICE)
        self._keep_imminent_starts(cycle, rows, plan)
        self._keep_suspended(rows, plan, table)
        starts_s = plan.start_s[: len(rows)]
        deferred = np.flatnonzero(starts_s > np.maximum(cycle.now_s, eligible_s) + CHANGED_S)
        held, limit = set(self._holds.jobs), self._settings.max_held_jobs
        for at in shared_fairly(queue, rows, deferred, plan.cost_now - plan.cost, held, limit):
            row = int(rows[at])
            job_id, submit_s = int(cycle.group[row]), float(queue.submit_s[row])
            known = self.jobs.get(job_id)
            job = known or DeferredJob(
                *(job_id, submit_s, float(eligible_s[at])),
                *(float(table.latest_start_s[at]), cycle.now_s, float(plan.start_s[at])),
                *(self._settings.policy, self._currency, plan.unit),
            )
            if job.held_since_s is None:
                job.held_since_s = cycle.now_s
            job.eligible_s = float(eligible_s[at])
            job.latest_start_s = float(table.latest_start_s[at])
            job.planned_start_s, job.unit = float(plan.start_s[at]), plan.unit
            job.cost_now, job.cost_planned = _known(plan.cost_now[at]), _known(plan.cost[at])
            job.cost_deviation = _known(plan.deviation[at])
            job.predicted_s = _known(table.time_s[at])
            job.suspensions = suspended.suspensions if (suspended := self._continued.get(row)) else 0
            job.signal_now = signals.at(signal, cycle.now_s)
            job.signal_planned = signals.at(signal, job.planned_start_s)
            if known is None:
                self.jobs[job_id] = job
                cycle.started.append(job)
            cycle.wanted.append(job)

    def _keep_imminent_starts(self, cycle: DeferralCycle, rows: Ints, plan: DeferralPlan) -> None:
        """Keep a held job waiting if its planned start is near and cheaper than a start now.

        The deferral policy releases a job when further waiting saves less than a minimum. Shortly before the
        planned start, the wait can save only little, so that the policy alone would release the job too
        early.
        """
        for at in np.flatnonzero(plan.reason[: len(rows)] == DeferralReason.GOOD_NOW).tolist():
            job = self.jobs.get(int(cycle.group[rows[at]]))
            if job is None or job.held_since_s is None or job.cost_planned is None:
                continue
            left_s = min(job.planned_start_s, job.latest_start_s) - cycle.now_s
            if 0.0 < left_s <= self._settings.hold_s and job.cost_planned < plan.cost_now[at]:
                plan.start_s[at], plan.cost[at] = job.planned_start_s, job.cost_planned

    def _keep_suspended(self, rows: Ints, plan: DeferralPlan, table: DeferralQueue) -> None:
        """Keep suspended jobs waiting for at least the minimum duration of a suspension.

        A job does not wait longer than its permitted delay (slack).
        """
        for at, row in enumerate(rows.tolist()):
            if suspended := self._continued.get(row):
                end_s = suspended.since_s + self._settings.min_suspension_s
                end_s = min(end_s, float(table.latest_start_s[at]))
                plan.start_s[at] = max(float(plan.start_s[at]), end_s)

    def _note_ends(self, cycle: DeferralCycle) -> list[DeferredJob]:
        """End the hold of each job that no longer needs to be held. Return the data of these jobs."""
        wanted = {job.job_id for job in cycle.wanted}
        ended = [
            job for job in self.jobs.values() if job.held_since_s is not None and job.job_id not in wanted
        ]
        for job in ended:
            job.end_hold(cycle.now_s)
        return ended


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
