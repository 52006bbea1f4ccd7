"""Suspension of checkpointable jobs in expensive slots, and their resumption, by dynamic programming.

For each job the cheapest set of slots is computed in which its remaining work fits before the latest end.
Each resumption costs the energy of a restart. The decision for the current slot is returned. It is repeated
in each slot with the forecasts of that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slurm_energy.deferral.tables import DeferralOptions
from slurm_energy.deferral.window_costs import CostCurve, cost_curve
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.signals import SignalColumns, SignalName

_MAX_SLOTS = 4 * 24 * 7


@dataclass(frozen=True, slots=True)
class CheckpointableJobs:
    """Checkpointable jobs; columns have shape (n,).

    Attributes:
        now_s: current time in seconds.
        left_s: predicted remaining run time.
        end_by_s: latest end: latest start plus predicted run time.
        suspensions: number of earlier suspensions of the job.
    """

    now_s: float
    left_s: Floats
    end_by_s: Floats
    suspensions: Ints


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """Minimum cost of one watt for work that ends in time, by slot and remaining slots of work.

    Attributes:
        running: minimum cost if the job runs before the slot, shape (h + 1, r + 1); infinity: not in time.
        suspended: minimum cost if the job is suspended, with its restart.
        waiting: minimum cost if the job has not started.
    """

    running: Floats
    suspended: Floats
    waiting: Floats


def slot_choice(slot_cost: Floats, work: int, restart_slots: float) -> SlotChoice:
    """Return the minimum costs for all slots and amounts of work up to `work` slots.

    Args:
        slot_cost: cost of one watt in each slot up to the latest end, shape (h,).
        work: maximum number of slots of work.
        restart_slots: time of a restart, in slots; its energy is paid in the slot of the resumption.
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
) -> Bools:
    """Return which running jobs should be suspended now, shape (n,).

    A job is suspended if waiting for later slots saves more than `min_saving` of its remaining cost, and if
    it can still resume and end in time. A job is suspended at most `max_suspensions` times.
    """
    pause = np.zeros(len(jobs.left_s), np.bool_)
    curve = cost_curve(signals, signal)
    if curve is None:
        return pause
    for members, slots, work in _groups(jobs, options):
        slot_cost = _slot_costs(curve, jobs.now_s, slots, options)
        choice = slot_choice(slot_cost, int(np.max(work)), options.restart_s / options.slot_s)
        run_on = slot_cost[0] + choice.running[1, work - 1]
        saving = run_on - choice.suspended[1, work]
        pause[members] = saving > options.min_saving * np.abs(run_on)
    return pause


def planned_starts(
    jobs: CheckpointableJobs, curve: CostCurve, options: DeferralOptions
) -> tuple[Floats, Floats]:
    """Return the best starts of checkpointable jobs that do not run, if they may be suspended afterwards.

    Args:
        jobs: the jobs, which have not started or are suspended.
        curve: cost of energy over time.
        options: parameters.

    Returns:
        The start of each job, the current time or a multiple of the slot after it, and the cost per watt from
        there on. Both are NaN where the latest end leaves no choice. Shape (n,).
    """
    starts, costs = np.full(len(jobs.left_s), np.nan), np.full(len(jobs.left_s), np.nan)
    for members, slots, work in _groups(jobs, options):
        slot_cost = _slot_costs(curve, jobs.now_s, slots, options)
        choice = slot_choice(slot_cost, int(np.max(work)), options.restart_s / options.slot_s)
        begins = slot_cost[:, None] + choice.running[1:, work - 1] <= choice.waiting[1:, work]
        slot = np.argmax(begins, axis=0)
        aligned = np.floor((jobs.now_s + slot * options.slot_s) / options.slot_s) * options.slot_s
        starts[members] = np.maximum(jobs.now_s, aligned)
        costs[members] = choice.waiting[0, work]
    return starts, costs


def _groups(jobs: CheckpointableJobs, options: DeferralOptions) -> Iterator[tuple[Ints, int, Ints]]:
    """Yield the jobs that have a choice, by the number of slots up to their latest end.

    Returns:
        Rows of the jobs, the number of slots, and the slots of remaining work of each job.
    """
    slot_s = options.slot_s
    work = np.ceil(jobs.left_s / slot_s - 1e-9).astype(np.int64)
    remaining = np.maximum(0, options.max_suspensions - jobs.suspensions)
    # Each later restart takes time before the latest end.
    spare_s = jobs.end_by_s - options.restart_s * remaining - jobs.now_s
    slots = np.floor(np.nan_to_num(spare_s, nan=0.0) / slot_s + 1e-9).astype(np.int64)
    able = (remaining > 0) & (work >= 1) & (slots > work) & (work < _MAX_SLOTS)
    slots = np.minimum(slots, _MAX_SLOTS)
    for horizon in np.unique(slots[able]).tolist():
        members = np.flatnonzero(able & (slots == horizon))
        yield members, horizon, work[members]


def _slot_costs(curve: CostCurve, now_s: float, slots: int, options: DeferralOptions) -> Floats:
    """Return the cost of one watt in each slot from now on, with the penalty of its uncertainty."""
    starts = now_s + options.slot_s * np.arange(slots)
    ends = starts + options.slot_s
    return curve.cost(starts, ends) + options.uncertainty_weight * curve.spread(starts, ends)
