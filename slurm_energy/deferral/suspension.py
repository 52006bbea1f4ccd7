"""Suspension of jobs with checkpoints in expensive time slots, and their resumption.

For each job, dynamic programming finds the set of time slots with the lowest cost of energy in which
the remaining work fits before the latest end. Each resumption costs the energy of a restart. Only the
decision for the current slot is returned. The decision is repeated in each slot with the forecasts
available at that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slurm_energy.deferral.tables import DeferralOptions
from slurm_energy.deferral.window_costs import CostCurve, cost_curve
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.signals import SignalColumns, SignalName

_MAX_SLOTS = 4 * 24 * 7
_EQUAL = 1e-9  # relative difference of costs that comes from rounding


@dataclass(frozen=True, slots=True)
class CheckpointableJobs:
    """Checkpointable jobs; columns have shape (n,).

    Attributes:
        now_s: current time in seconds.
        left_s: predicted remaining run time.
        end_by_s: latest end of the job, which is its latest start plus its predicted run time.
        suspensions: number of earlier suspensions of the job.
        restart_s: time that a checkpoint and a restart of the job take together.
        ran_s: time since the current run of the job began. Not used for jobs that do not run.
    """

    now_s: float
    left_s: Floats
    end_by_s: Floats
    suspensions: Ints
    restart_s: Floats
    ran_s: Floats


@dataclass(frozen=True, slots=True)
class SuspensionPlan:
    """Suspensions of running jobs; columns have shape (n,), in the order of the `CheckpointableJobs`.

    Attributes:
        suspend: whether the job should be suspended now.
        resume_s: best time at which the suspended job resumes; NaN if the job is not suspended.
        cost_now: expected cost per watt if the job is not suspended now but may be suspended later; NaN if
            unknown.
        cost: expected cost per watt if the job is suspended now, including the restart; NaN if unknown.
    """

    suspend: Bools
    resume_s: Floats
    cost_now: Floats
    cost: Floats


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """Table of the minimum cost of completing a job in time, for each time slot and remaining work.

    Costs are per watt of the job's power. Remaining work is counted in slots.

    Attributes:
        running: minimum cost if the job was running just before the slot, shape (h + 1, r + 1) for h slots
            and at most r slots of remaining work. Infinity means that the work cannot be completed in time.
        suspended: minimum cost if the job is suspended, including the cost of the restart; same shape.
        waiting: minimum cost if the job has not started; same shape.
    """

    running: Floats
    suspended: Floats
    waiting: Floats


def slot_choice(slot_cost: Floats, work: int, restart_slots: float) -> SlotChoice:
    """Return the minimum costs to finish a job that may be suspended while power is expensive.

    The costs are computed for every starting slot (interval of time) and for every number of slots of
    remaining work, from 0 to `work`.

    Args:
        slot_cost: cost of drawing one watt during each slot up to the latest end, shape (h,).
        work: maximum number of slots of work.
        restart_slots: duration of a restart, in slots. The energy of a restart is counted in the slot of the
            resumption.
    """
    horizon = len(slot_cost)
    running = np.full((horizon + 1, work + 1), np.inf)
    suspended, waiting = running.copy(), running.copy()
    for table in (running, suspended, waiting):
        table[:, 0] = 0.0
    for slot in range(horizon - 1, -1, -1):
        work_now = slot_cost[slot] + running[slot + 1, :-1]
        running[slot, 1:] = np.minimum(work_now, suspended[slot + 1, 1:])
        suspended[slot, 1:] = np.minimum(restart_slots * slot_cost[slot] + work_now, suspended[slot + 1, 1:])
        waiting[slot, 1:] = np.minimum(work_now, waiting[slot + 1, 1:])
    return SlotChoice(running, suspended, waiting)


def plan_suspensions(
    jobs: CheckpointableJobs, signals: SignalColumns | None, signal: SignalName, options: DeferralOptions
) -> SuspensionPlan:
    """Return which running jobs should be suspended now, and when each should resume.

    A job is suspended under two conditions. The wait for later slots must save more than the fraction
    `min_saving` of the job's remaining cost. The job must still be able to resume and to end in time. A job
    is suspended at most `max_suspensions` times. Before a suspension, the job must have run for at least
    `min_run_s`. A suspension lasts at least `min_suspension_s`.
    """
    count = len(jobs.left_s)
    plan = SuspensionPlan(np.zeros(count, np.bool_), *(np.full(count, np.nan) for _ in range(3)))
    curve = cost_curve(signals, signal)
    if curve is None:
        return plan
    least = max(1, math.ceil(options.min_suspension_s / options.slot_s - 1e-9))
    for members, slots, work, restart_s in _groups(jobs, options):
        if least >= slots:
            continue
        slot_cost = _slot_costs(curve, jobs.now_s, slots, options)
        choice = slot_choice(slot_cost, int(np.max(work)), restart_s / options.slot_s)
        run_on = slot_cost[0] + choice.running[1, work - 1]
        later = choice.suspended[least, work]
        enough = np.isfinite(later) & (run_on - later > options.min_saving * np.abs(run_on))
        plan.suspend[members] = enough & (jobs.ran_s[members] >= options.min_run_s)
        plan.cost_now[members], plan.cost[members] = run_on, later
        stay = choice.suspended[least + 1 :, work]
        resume = restart_s / options.slot_s * slot_cost[least:, None]
        resume = resume + (slot_cost[least:, None] + choice.running[least + 1 :, work - 1])
        resumes = resume <= stay + _EQUAL * np.abs(stay)  # the earliest of equal times
        plan.resume_s[members] = jobs.now_s + options.slot_s * (least + np.argmax(resumes, axis=0))
    plan.resume_s[~plan.suspend] = np.nan
    return plan


def planned_starts(
    jobs: CheckpointableJobs, curve: CostCurve, options: DeferralOptions
) -> tuple[Floats, Floats]:
    """Return the cheapest start of each checkpointable job that does not run now.

    The plan assumes that the job may be suspended in expensive time slots after its start, and resumed
    later.

    Args:
        jobs: the jobs, which have not started or are suspended.
        curve: cost of energy over time.
        options: parameters of the deferral policies.

    Returns:
        Two arrays of shape (n,). The first array contains the start of each job. A start is the current
        time or a later multiple of the slot length. The second array contains the cost per watt of the
        job's power from this start on. Both values are NaN if the job has no choice of slots before its
        latest end.
    """
    starts, costs = np.full(len(jobs.left_s), np.nan), np.full(len(jobs.left_s), np.nan)
    for members, slots, work, restart_s in _groups(jobs, options):
        slot_cost = _slot_costs(curve, jobs.now_s, slots, options)
        choice = slot_choice(slot_cost, int(np.max(work)), restart_s / options.slot_s)
        begins = slot_cost[:, None] + choice.running[1:, work - 1] <= choice.waiting[1:, work]
        slot = np.argmax(begins, axis=0)
        aligned = np.floor((jobs.now_s + slot * options.slot_s) / options.slot_s) * options.slot_s
        starts[members] = np.maximum(jobs.now_s, aligned)
        costs[members] = choice.waiting[0, work]
    return starts, costs


def _groups(jobs: CheckpointableJobs, options: DeferralOptions) -> Iterator[tuple[Ints, int, Ints, float]]:
    """Yield groups of jobs that have a choice of time slots for their remaining work.

    A job has a choice under two conditions: it may still be suspended, and its work needs fewer time
    slots than remain until its latest end. The jobs of a group have the same number of slots until the
    latest end, and the same restart time.

    Returns:
        For each group: rows of the jobs, number of slots until the latest end, slots of remaining
        work of each job, and duration of a restart in seconds.
    """
    slot_s = options.slot_s
    work = np.ceil(jobs.left_s / slot_s - 1e-9).astype(np.int64)
    remaining = np.maximum(0, options.max_suspensions - jobs.suspensions)
    # Each later restart takes time before the latest end.
    spare_s = jobs.end_by_s - jobs.restart_s * remaining - jobs.now_s
    slots = np.floor(np.nan_to_num(spare_s, nan=0.0) / slot_s + 1e-9).astype(np.int64)
    able = (remaining > 0) & (work >= 1) & (slots > work) & (work < _MAX_SLOTS)
    slots = np.minimum(slots, _MAX_SLOTS)
    groups = {(slots[row], jobs.restart_s[row]) for row in np.flatnonzero(able).tolist()}
    for horizon, restart_s in sorted(groups):
        members = np.flatnonzero(able & (slots == horizon) & (jobs.restart_s == restart_s))
        yield members, int(horizon), work[members], float(restart_s)


def _slot_costs(curve: CostCurve, now_s: float, slots: int, options: DeferralOptions) -> Floats:
    """Return the cost of one watt in each time slot from now on.

    A penalty for the uncertainty of the forecast is added to the cost.
    """
    starts = now_s + options.slot_s * np.arange(slots)
    ends = starts + options.slot_s
    return curve.cost(starts, ends) + options.uncertainty_weight * curve.spread(starts, ends)
