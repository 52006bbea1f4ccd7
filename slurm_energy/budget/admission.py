"""Admission under power budgets: pending jobs that fit now, and the limits at which they start.

The simulator and the controller use the same functions. Running jobs count at their economic limits, because
the distribution lowers running jobs to these limits to free power for further jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.budget.group_response import GroupLimits, group_limits
from slurm_energy.budget.power_groups import BudgetColumns, PowerGroups
from slurm_energy.scheduling.queue import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class PowerAdmission:
    """Result of the admission of m pending jobs, in order, under b budgets.

    Attributes:
        fits: whether the job starts now, shape (m,).
        blocking: row of the budget without enough headroom for the job; -1 for a job that fits. Shape (m,).
        headroom_watts: power that jobs may still add under each budget after the admitted jobs, shape (b,).
    """

    fits: Bools
    blocking: Ints
    headroom_watts: Floats


def headroom_watts(
    groups: PowerGroups, budgets: BudgetColumns, *, limits: GroupLimits | None = None
) -> Floats:
    """Return the power that new jobs may add under each budget, shape (b,).

    The headroom is negative if the power is above the limit.

    Args:
        groups: groups of devices of running jobs, and of devices without jobs.
        budgets: budgets in force.
        limits: characteristic limits of the groups; None means that they are computed.
    """
    counted_watts = (limits or group_limits(groups)).economic_watts
    used_watts: Floats = budgets.members.astype(np.float64) @ counted_watts
    free: Floats = budgets.limit_watts - budgets.fixed_watts - used_watts
    return free


def added_watts(pending: PowerGroups, idle_watts: Floats, *, limits: GroupLimits | None = None) -> Floats:
    """Return the power above idle that each group of devices adds when it starts, shape (n,); at least 0.

    The admission uses the sum over all groups of a job. The job starts at its economic limit or above.

    Args:
        pending: groups of devices of pending jobs, with predicted power and response to limits.
        idle_watts: power of one idle device, shape (n,).
        limits: characteristic limits of the groups; None means that they are computed.
    """
    above_idle: Floats = np.maximum(0.0, (limits or group_limits(pending)).economic_watts - idle_watts)
    return above_idle * pending.devices


def admit_in_order(
    job_watts: Floats, members: Floats, headroom: Floats, *, stops_at: Bools | None = None
) -> PowerAdmission:
    """Admit the jobs one after the other, and return the result.

    A job is admitted if no budget is exceeded by this job together with the jobs admitted before.

    Args:
        job_watts: power that the start of each job adds above idle, in the order of starts, shape (m,).
        members: fraction of each job's power that counts under each budget, 0 to 1, shape (b, m).
        headroom: power that jobs may add under each budget, shape (b,).
        stops_at: whether each job, if it does not fit, stops all later jobs, shape (m,). None means that no
            job stops later jobs.
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


def start_limits(limits: GroupLimits, idle_watts: Floats, members: Ints, headroom: Floats) -> Floats:
    """Return the power limit per device with which an admitted job starts, shape (n,).

    The limit applies until the next distribution.

    Each group gets its economic limit plus a fraction of the range between this limit and the group's
    expected power. All groups have the same fraction. It is the largest fraction that the headroom of the
    budgets allows.

    Args:
        limits: characteristic limits of the groups of devices of one admitted job.
        idle_watts: power of one idle device, shape (n,).
        members: number of devices of each group under each budget, shape (b, n).
        headroom: power that the job may add under each budget, shape (b,).
    """
    low = np.maximum(idle_watts, limits.economic_watts)
    more = np.maximum(0.0, limits.needed_watts - low)
    free = headroom - members @ (low - idle_watts)
    wanted = members @ more
    exceeds = (wanted > free) & (wanted > 0)
    parts = np.divide(np.maximum(0.0, free), wanted, out=np.ones_like(wanted), where=exceeds)
    starts: Floats = limits.economic_watts + float(np.min(parts, initial=1.0)) * np.maximum(
        0.0, limits.needed_watts - limits.economic_watts
    )
    return starts
