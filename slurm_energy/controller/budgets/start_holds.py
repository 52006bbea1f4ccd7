"""Holding back of pending jobs whose start would exceed a power budget.

senergyctld holds these jobs in Slurm until enough power is free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import numpy as np

from slurm_energy.budget.start_order import PowerRequest, StartOrder, order_starts
from slurm_energy.controller.budgets.blocked_jobs import BlockedJobs
from slurm_energy.controller.budgets.job_coverage import CoveringBudget, covering_budgets
from slurm_energy.controller.deferral.begin_holds import BeginTimeHolds, pending_name
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.scheduling.queue import Ints
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns
from slurm_energy.slurm.queue.job_update import JobUpdater

MAX_DELAYING: Final = 200
"""Maximum number of jobs that are held because they would delay another one."""
PRECEDENCE_S: Final = 60.0
"""Time for which a job that waited for power keeps its precedence after its power has become free."""
_SOON_S: Final = 60.0  # jobs that may start within this time are considered, too


class HeldBudget(CoveringBudget, Protocol):
    """Interface of a power budget that can prevent pending jobs from starting (hold them)."""

    @property
    def name(self) -> str:
        """Name of the budget in the configuration."""
        ...

    @property
    def headroom_watts(self) -> float:
        """Power that new jobs may add now under this budget, in watts.

        The power of a new job counts above the idle power of its nodes.
        """
        ...


class StartHolds:
    """Holds of pending jobs that would exceed a power budget if they started.

    A held job cannot start. The number of held jobs is limited.

    Args:
        updater: changes pending jobs in Slurm.
        begin_times: begin times of pending jobs, shared with the other parts of senergyctld that delay jobs;
            None means that no other part delays jobs.

    Attributes:
        max_headroom_watts: upper bound of the power that new jobs may get, by name of the budget. It
            protects the power for which the first waiting job of a budget waits. A budget has an entry only
            if there are too many jobs to hold all those that could take this power.
    """

    def __init__(self, updater: JobUpdater, begin_times: BeginTimes | None = None) -> None:
        self._holds = BeginTimeHolds(updater, begin_times)
        self._blocked = BlockedJobs()
        self.max_headroom_watts: dict[str, float] = {}
        self._first: int | None = None
        self._first_since_s: float | None = None

    def apply(
        self,
        queue: QueueColumns,
        watts: Ints,
        now_unix_s: float,
        budgets: Sequence[HeldBudget],
        counted_jobs: Collection[int],
        *,
        only_delaying: bool,
    ) -> tuple[dict[int, str], tuple[str, ...]]:
        """Hold the pending jobs that must wait for power, and release the other jobs.

        Args:
            queue: the jobs.
            watts: power that each job adds above idle.
            now_unix_s: the time now.
            budgets: budgets in force.
            counted_jobs: running jobs whose power is already subtracted from the headroom of the budgets (the
                power that new jobs may add).
            only_delaying: whether Slurm's power licenses already keep jobs from starting that do not fit
                under a budget. In this case the only jobs to hold are those that fit, but would delay the
                first job that does not fit.

        Returns:
            Two values. The first is the reason for the hold of each held job as a sentence, by job id. The
            second contains the failures, one line each.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        blocked = self._blocked.update(queue, now_unix_s)
        running, pending, headroom = self._requests(queue, watts, now_unix_s, budgets, counted_jobs, blocked)
        decision = order_starts(pending, running, headroom)
        held = set(decision.delaying if only_delaying else decision.waiting)
        held -= decision.delaying & _preceding(queue, blocked, decision.first)
        self.max_headroom_watts = {}
        if only_delaying and decision.first is not None and len(held) > MAX_DELAYING:
            held = set([job.job_id for job in pending if job.job_id in held][:MAX_DELAYING])
            first = budgets[decision.waiting[decision.first]].name
            self.max_headroom_watts[first] = max(0.0, decision.spare_watts)
        taking = self._taking_jobs(decision, pending, headroom, now_unix_s)
        preceding = _preceding(queue, blocked, self._first)
        taking = [job for job in taking if job not in preceding][: max(0, MAX_DELAYING - len(held))]
        held.update(taking)
        begin_s = dict(zip(queue.job_id.tolist(), queue.eligible_s.tolist(), strict=True))
        ordered = [request.job_id for request in pending if request.job_id in held]
        problems = self._holds.hold(ordered, begin_s, now_unix_s)
        sentences = {
            request.job_id: _sentence(request, decision, budgets, headroom)
            for request in pending
            if request.job_id in held
        }
        why = (
            f"held by senergyctld: it would take the power of job {self._first}, whose nodes are not free yet"
        )
        return sentences | dict.fromkeys(taking, why), problems

    def _taking_jobs(
        self,
        decision: StartOrder,
        pending: Sequence[PowerRequest],
        headroom: Sequence[float],
        now_unix_s: float,
    ) -> list[int]:
        """Return the pending jobs that would take the power meant for the first waiting job.

        The first waiting job is the job that was first to wait for power. This job already fits under the
        budgets, but its nodes may still be busy with the epilogs of ended jobs. As long as the nodes are
        busy, Slurm plans no start for this job, and would start jobs with lower priority first.

        Args:
            decision: the decision about the pending jobs.
            pending: pending jobs in the order of their priority.
            headroom: power that new jobs may add under each budget.
            now_unix_s: the time now.
        """
        position = next((i for i, job in enumerate(pending) if job.job_id == self._first), None)
        if self._first_since_s is None:
            self._first_since_s = now_unix_s
        is_over = not 0 <= now_unix_s - self._first_since_s < PRECEDENCE_S
        if position is None or self._first in decision.waiting or is_over:
            self._first, self._first_since_s = decision.first, None
            return []
        budgets = set(pending[position].budgets)
        return [
            job.job_id
            for job in pending[position + 1 :]
            if job.job_id in decision.waiting
            and budgets.intersection(job.budgets)
            and all(job.watts <= headroom[budget] for budget in job.budgets)
        ]

    def release_all(self, now_unix_s: float) -> None:
        """Release every job that a power budget holds."""
        self._holds.release(None, now_unix_s)

    def _requests(
        self,
        queue: QueueColumns,
        watts: Ints,
        now_unix_s: float,
        budgets: Sequence[HeldBudget],
        counted_jobs: Collection[int],
        blocked: Collection[int],
    ) -> tuple[list[PowerRequest], list[PowerRequest], list[float]]:
        """Return running jobs, pending jobs in order of priority, and the headroom of each budget.

        Jobs in `blocked` come last, because Slurm would not start them even if power were free.

        The headroom is the power that new jobs may add. The budgets have counted only the power of the
        running jobs in `counted_jobs`. The power of all other running jobs is therefore subtracted from the
        headroom.
        """
        running, pending = [], []
        names: dict[int, str] = {}
        headroom = [budget.headroom_watts for budget in budgets]
        covering = covering_budgets(queue, dict(enumerate(budgets)))
        is_blocked = np.array([job in blocked for job in queue.job_id.tolist()], np.bool_)
        for row in np.lexsort((queue.job_id, -queue.priority, is_blocked)).tolist():
            request = _request(queue, watts, row, covering, now_unix_s)
            if queue.state[row] != PENDING:
                running.append(request)
                for budget in request.budgets if request.job_id not in counted_jobs else ():
                    headroom[budget] -= request.watts
                continue
            is_ready = not queue.dependent[row] or queue.eligible_s[row] <= now_unix_s + _SOON_S
            if not queue.held[row] and (is_ready or request.job_id in self._holds.jobs):
                pending.append(request)
                names[request.job_id] = pending_name(queue, row)
        self._holds.set_names(names)
        return running, pending, headroom


def _preceding(queue: QueueColumns, blocked: Collection[int], first: int | None) -> set[int]:
    """Return the blocked jobs that may start before the first waiting job although they delay it.

    These jobs have a higher priority than the first waiting job. If they were held, they would start after
    this job once Slurm no longer blocks them. All blocked jobs are returned if the first waiting job is
    blocked itself, or if no job waits.

    Args:
        queue: the jobs.
        blocked: ids of the pending jobs that Slurm does not start for a reason other than power.
        first: first waiting job; None means that no job waits.
    """
    if not blocked or first is None or first in blocked:
        return set(blocked)
    row = int(np.flatnonzero(queue.job_id == first)[0])
    key = (-int(queue.priority[row]), first)
    pairs = zip((-queue.priority).tolist(), queue.job_id.tolist(), strict=True)
    return {job for priority, job in pairs if job in blocked and (priority, job) < key}


def _sentence(
    request: PowerRequest, decision: StartOrder, budgets: Sequence[HeldBudget], headroom: Sequence[float]
) -> str:
    number = decision.waiting[request.job_id]
    if request.job_id in decision.delaying:
        return (
            f"held by senergyctld: it would delay job {decision.first}, which waits for power under budget "
            f"'{budgets[number].name}'"
        )
    free = max(0.0, headroom[number])
    return (
        f"held by senergyctld: it adds {request.watts:.0f} W, and {free:.0f} W are free under budget "
        f"'{budgets[number].name}'"
    )


def _request(
    queue: QueueColumns,
    watts: Ints,
    row: int,
    covering: Callable[[int], tuple[int, ...]],
    now_unix_s: float,
) -> PowerRequest:
    is_pending = queue.state[row] == PENDING
    limit_s = float(queue.time_limit_s[row] if is_pending else queue.end_s[row] - now_unix_s)
    return PowerRequest(
        int(queue.job_id[row]),
        float(watts[row]),
        covering(row),
        limit_s if limit_s == limit_s else float("inf"),
    )
