"""Input and result of deferral policies, which decide when pending jobs should start.

The data are plain columns with one entry per job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike

from slurm_energy.errors import UsageError
from slurm_energy.scheduling.queue import Bools, Floats, Ints, Queue
from slurm_energy.signals import SignalColumns

SLOT_S = 900.0
"""Default length of a slot, in which starts are planned: 15 minutes, as in CE-DLA."""
START_MARGIN_S = 10_800.0
"""Default margin between the latest planned start and the latest start."""
MARGIN_WEIGHT = 4.0
"""Default of `DeferralOptions.margin_weight`, chosen on the first third of the year (docs/signals.md)."""


class DeferralReason(IntEnum):
    """Reason for the planned start of a job."""

    URGENT = 0
    """The job is not deferrable."""
    NO_FORECAST = 1
    """The signal that the policy needs is unknown."""
    NO_SLACK = 2
    """The job must start before the next slot."""
    GOOD_NOW = 3
    """Starting now is among the best choices that the forecast offers."""
    DEFERRED = 4
    """A later start is expected to be better."""
    NO_ROOM = 5
    """Better slots are full; the job may start at once."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free resources of the cluster over time, from which deferral policies plan the starts of jobs.

    Slot 0 begins at `start_s`, and all slots are `step_s` long. The last slot also describes all later times.

    Attributes:
        start_s: start of slot 0, at or before the current time.
        step_s: length of a slot in seconds.
        units: number of units (GPUs, nodes or cores) of each kind of hardware that running jobs and
            reservations leave free, shape (kinds, slots).
        watts: power that running jobs and reservations leave free under the budget, shape (slots,). None
            without a budget.
        reserve: number of units to keep free for jobs that have not arrived yet, shape (kinds, slots). A job
            is deferred only to a slot in which these units stay free. None if no arrivals are expected.
        high_reserve: number of units that suffices in nearly all cases for jobs that have not arrived yet,
            shape (kinds, slots). None if unknown.
        release_s: mean time until the jobs on a full cluster release one unit, shape (kinds,). NaN or None if
            unknown.
    """

    start_s: float
    step_s: float
    units: Floats
    watts: Floats | None = None
    reserve: Floats | None = None
    high_reserve: Floats | None = None
    release_s: Floats | None = None


@dataclass(frozen=True, slots=True)
class DeferralOptions:
    """Parameters that a site sets for all deferral policies.

    Attributes:
        slot_s: length of a slot in seconds. Planned starts are multiples of this length.
        best_share: fraction of the possible starts that count as cheap, 0 to 1. The possible starts within
            the job's slack are ordered by cost. A job starts at once if a start now is one of the cheap
            starts.
        uncertainty_weight: number of standard deviations of the forecast that are added to the cost of later
            starts, so that an uncertain advantage does not defer a job.
        min_saving: minimum expected saving for which a job is deferred, as a fraction of the cost of starting
            at once.
        solver_limit_s: time limit of the solver of `cedla` in seconds.
        soft: whether `cedla` accepts jobs for which the capacity does not suffice before their latest start.
            If False, `DeferralPlan.rejected` marks these jobs. In either case these jobs may start at once,
            so no planned start is later than `latest_start_s`.
        suspend: whether running checkpointable jobs may be suspended in expensive slots.
        restart_s: time that a checkpoint and a restart take together.
        max_suspensions: maximum number of suspensions of one job.
        min_run_s: minimum time for which a job runs before it is suspended.
        min_suspension_s: minimum time for which a job is suspended.
        reserve_weight: number of standard deviations. The mean demand of urgent arrivals, plus this number of
            standard deviations of the demand, is kept free.
        start_margin_s: time between the latest planned start and the latest start, in which a job can wait
            for resources, because held jobs reserve no resources. This value applies while few arrivals are
            known. Later each job has its own margin, at most twice this value; see `deferral.start_margin`.
        margin_weight: number of standard deviations. A job's own margin is long enough while the demand of
            arrivals exceeds its mean by at most this number of standard deviations.
        weights: further weights by name, for a site's own policies.
    """

    slot_s: float = SLOT_S
    best_share: float = 0.0
    uncertainty_weight: float = 0.25
    min_saving: float = 0.02
    solver_limit_s: float = 2.0
    soft: bool = True
    suspend: bool = True
    restart_s: float = 120.0
    max_suspensions: int = 3
    min_run_s: float = 0.0
    min_suspension_s: float = 0.0
    reserve_weight: float = 0.0
    start_margin_s: float = START_MARGIN_S
    margin_weight: float = MARGIN_WEIGHT
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeferralQueue:
    """Pending jobs in the order in which they get resources, each with one chosen allocation.

    Columns have shape (n,).

    Attributes:
        now_s: current time in seconds.
        job_id: number of the job.
        earliest_s: earliest start, at least `now_s`.
        latest_start_s: latest start; NaN if the job is not deferrable.
        time_s: predicted run time.
        power_watts: predicted mean power.
        units: number of units (GPUs, nodes or cores) that each job needs.
        hardware: index of the job's kind of hardware. It is also the row in `Capacity.units`.
        checkpointable: whether the job can be suspended and resumed.
        signals: signals of the cluster; None if no signal is known.
        capacity: free resources; None means unlimited.
        planned_s: start that an earlier plan granted to the job; NaN for a job that the earlier
            plan did not contain. None if there is no earlier plan. A job keeps its resources at
            this start until a better start is found.
        slack_s: whole slack of each job. The slack limits the margin before the latest start. NaN
            if the job is not deferrable. None means that no margin is used.
    """

    now_s: float
    job_id: Ints
    earliest_s: Floats
    latest_start_s: Floats
    time_s: Floats
    power_watts: Floats
    units: Floats
    hardware: Ints
    checkpointable: Bools
    signals: SignalColumns | None = None
    capacity: Capacity | None = None
    planned_s: Floats | None = None
    slack_s: Floats | None = None

    @property
    def count(self) -> int:
        """Return the number of jobs."""
        return len(self.job_id)

    @property
    def deferrable(self) -> Bools:
        """Return a mask of the jobs that may be deferred, because their latest start is after now."""
        later: Bools = self.latest_start_s > self.now_s  # False for NaN
        return later


@dataclass(frozen=True, slots=True)
class DeferralPlan:
    """Planned starts of pending jobs; columns have shape (n,), in the order of the `DeferralQueue`.

    Attributes:
        job_id: number of the job.
        start_s: earliest start that the policy grants. This start is not before `now_s` and not after the
            job's latest start. The value is `now_s` if the job may start at once, for example because its
            latest start has passed.
        reason: reason for the planned start, a `DeferralReason`.
        cost_now: expected cost of starting at once, in `unit`; NaN if unknown.
        cost: expected cost of the planned start, in `unit`; NaN if unknown.
        deviation: standard deviation of `cost`; NaN if unknown.
        rejected: mask of the jobs for which a policy with hard constraints found no room.
        unit: unit of the costs: `currency` or `g`.
    """

    job_id: Ints
    start_s: Floats
    reason: Ints
    cost_now: Floats
    cost: Floats
    deviation: Floats
    rejected: Bools
    unit: str = "currency"

    @property
    def expected_saving(self) -> Floats:
        """Return the expected saving relative to starting at once, in `unit`; NaN if unknown."""
        return self.cost_now - self.cost

    @property
    def deferred(self) -> Bools:
        """Mask of the jobs whose start the plan has moved to a later time slot."""
        deferred: Bools = self.reason == int(DeferralReason.DEFERRED)
        return deferred


def deferral_queue(
    queue: Queue, choice: ArrayLike | None = None, capacity: Capacity | None = None
) -> DeferralQueue:
    """Return the pending jobs of a queue as input of deferral policies.

    A job may have several alternatives (ways to run it). One of them is selected for each job.

    Args:
        queue: the pending jobs with their alternatives and signals.
        choice: row in `queue.alternatives` of each job's selected alternative, as in `Ranking.choice`. A
            negative value or None selects the job's first alternative.
        capacity: free resources; None means unlimited.
    """
    first = queue.alternatives.first[:-1]
    rows = first if choice is None else np.asarray(choice, np.int64)
    rows = np.where(rows < 0, first, rows)
    table = queue.alternatives
    return DeferralQueue(
        now_s=queue.now_s,
        job_id=queue.jobs.job_id,
        earliest_s=np.full(queue.jobs.count, queue.now_s),
        latest_start_s=queue.jobs.latest_start_s,
        time_s=table.time_s[rows],
        power_watts=table.power_watts[rows],
        units=table.gpus[rows].astype(np.float64),
        hardware=table.hardware[rows],
        checkpointable=queue.jobs.checkpointable,
        signals=queue.signals,
        capacity=capacity,
    )


def latest_start_s(
    submit_s: ArrayLike,
    slack_s: ArrayLike,
    deadline_s: ArrayLike,
    limit_s: ArrayLike,
    max_slack_s: float = np.inf,
) -> Floats:
    """Return the latest start of each job; NaN if the job is not deferrable.

    The latest start is the earlier of two times: submission plus slack, and deadline minus time limit. A job
    with neither slack nor deadline is not deferrable. The slack is at most `max_slack_s`.

    Args:
        submit_s: time at which each job became eligible.
        slack_s: slack in seconds. NaN means that the user gave no slack, 0 that the job is not deferrable.
        deadline_s: time by which the job must have ended; NaN if the job has no deadline.
        limit_s: time limit of each job in seconds; NaN if the job has no time limit or the limit is unknown.
            A job with a deadline but without a known time limit is not deferrable, because its latest start
            is unknown.
        max_slack_s: maximum slack that the site grants.

    Raises:
        UsageError: a slack is negative.
    """
    submit, slack = np.asarray(submit_s, np.float64), np.asarray(slack_s, np.float64)
    if np.any(slack < 0):
        raise UsageError("slack", "is negative")
    deadline = np.asarray(deadline_s, np.float64) - np.asarray(limit_s, np.float64)
    by_slack = submit + np.minimum(slack, max_slack_s)
    by_deadline = np.minimum(deadline, submit + max_slack_s)
    latest: Floats = np.fmin(by_slack, np.where(np.isnan(deadline), np.nan, by_deadline))
    is_unknown = ~np.isnan(np.asarray(deadline_s, np.float64)) & np.isnan(deadline)
    return np.where((latest > submit) & ~is_unknown, latest, np.nan)
