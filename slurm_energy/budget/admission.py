"""Admission of pending jobs under power budgets: which jobs may start, and at which power limits.

The simulator and the controller use the same functions. A job needs the power at its economic limit, which
is the power limit at which the job yields the most work per watt. The job starts in two cases. In the first
case, this power is free. In the second case, running jobs use this power but do less work per watt with it
than the pending job would. The power budget is then distributed anew and takes the power from the running
jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.budget.group_response import GroupLimits
from slurm_energy.scheduling.queue import Bools, Floats, Ints

_OFFER_FACTOR: Final = 1.1
"""Offered power divided by the demand. The demand changes a little until the power is free."""


@dataclass(frozen=True, slots=True)
class PowerAdmission:
    """Result of the admission: which of m pending jobs may start now under b power budgets.

    The jobs are considered in their order in the queue.

    Attributes:
        fits: whether the job starts now, shape (m,).
        blocking: index of the budget that has too little free power (headroom) for the job; -1 for a job
            that starts. Shape (m,).
        headroom_watts: power that jobs may still add under each budget after the admitted jobs have
            started, shape (b,).
    """

    fits: Bools
    blocking: Ints
    headroom_watts: Floats


def admit_in_order(
    job_watts: Floats, members: Floats, headroom: Floats, *, stops_at: Bools | None = None
) -> PowerAdmission:
    """Decide for one job after the other whether the job is admitted, and return the result.

    A job is admitted if no budget is exceeded by this job together with the jobs admitted before.

    Args:
        job_watts: power that must be free for each job, in the order of starts, shape (m,). It is the power
            that the start of the job adds above idle, plus the power that the job must leave to running jobs.
        members: fraction of each job's power that counts towards each budget, 0 to 1, shape (b, m).
        headroom: power that jobs may add under each budget, shape (b,).
        stops_at: for each job, whether all later jobs must wait if this job does not fit, shape (m,). None
            means False for all jobs.
    """
    left = np.array(headroom, np.float64)
    fits = np.zeros(len(job_watts), np.bool_)
    blocking = np.full(len(job_watts), -1, np.int64)
    for job in range(len(job_watts)):
        needed = members[:, job] * job_watts[job]
        lacking = np.flatnonzero((needed > left) & (needed > 0))
        if len(lacking):
            blocking[job] = lacking[0]
            if stops_at is not None and stops_at[job]:
                blocking[job + 1 :] = lacking[0]
                break
        else:
            fits[job] = True
            left -= needed
    return PowerAdmission(fits, blocking, left)


def offered_watts(headroom_watts: float, unused_watts: float, demand_watts: Sequence[float]) -> float:
    """Return the part of a budget's power that is kept free at any time for pending jobs.

    Pending jobs may take this power and start at once. Power that no running job needs is always part of
    the result. Power that running jobs use is part of the result only if a pending job fits in the
    headroom.

    Args:
        headroom_watts: power that new jobs may add if the limits of running jobs are lowered.
        unused_watts: the part of `headroom_watts` that no running job needs.
        demand_watts: power that must be free for each pending job.
    """
    fitting = math.fsum(watts for watts in demand_watts if watts <= headroom_watts)
    return min(headroom_watts, max(unused_watts, _OFFER_FACTOR * fitting))


def start_limits(
    limits: GroupLimits, economic_watts: Floats, idle_watts: Floats, members: Ints, headroom: Floats
) -> Floats:
    """Return the power limit per device with which an admitted job starts, shape (n,).

    The job keeps this limit until the power is next distributed among all jobs.

    The devices of the job form n groups. The limit of a group lies between its economic limit and its
    expected power without a limit. All groups are raised above their economic limits by the same fraction of
    this range. It is the largest fraction that the headroom of the budgets allows.

    Args:
        limits: expected power and other characteristic power limits of each group, see `GroupLimits`.
        economic_watts: economic limit of each group, see `economic_power`, shape (n,).
        idle_watts: power of one idle device, shape (n,).
        members: number of devices of each group under each budget, shape (b, n).
        headroom: power that the job may add under each budget, shape (b,).
    """
    low = np.maximum(idle_watts, economic_watts)
    more = np.maximum(0.0, limits.needed_watts - low)
    free = headroom - members @ (low - idle_watts)
    wanted = members @ more
    exceeds = (wanted > free) & (wanted > 0)
    parts = np.divide(np.maximum(0.0, free), wanted, out=np.ones_like(wanted), where=exceeds)
    more = np.maximum(0.0, limits.needed_watts - economic_watts)
    starts: Floats = economic_watts + float(np.min(parts, initial=1.0)) * more
    return starts
