"""Assignment of all deferrable jobs to time slots together, so that the total score is minimum.

The assignment uses integer programming or a heuristic.
"""

from __future__ import annotations

import copy
from typing import Final

import numpy as np

from slurm_energy.deferral.planning import NONE, StartTable, place
from slurm_energy.deferral.slot_fit import SlotFit
from slurm_energy.deferral.tables import DeferralOptions, DeferralQueue
from slurm_energy.scheduling.queue import Bools, Floats, Ints

_MAX_VARIABLES: Final = 60_000
"""Larger problems are left to the heuristic: the solver would not start within its time limit."""
_PASSES: Final = 4
_GOOD_ENOUGH: Final = 1e-4
"""Relative excess of the heuristic's total score over the minimum up to which no solver is used."""


def assign(
    queue: DeferralQueue, table: StartTable, score: Floats, fit: SlotFit, options: DeferralOptions
) -> Ints:
    """Return the start slots of all deferrable jobs with the minimum total score.

    A job for which no slot has enough resources gets `NONE`. The penalty for this exceeds any difference of
    scores. An integer-programming solver searches for the minimum. The result of a heuristic is used instead
    if scipy is not installed, the problem is too large, or the solver finds nothing better in time.
    """
    rough = heuristic(queue, table, score, fit)
    least = float(np.sum(np.min(score, axis=1, initial=np.inf)))
    if total_score(score, rough) - least <= _GOOD_ENOUGH * abs(least):
        return rough
    exact = solve(queue, table, score, fit, options.solver_limit_s)
    if exact is None or total_score(score, exact) >= total_score(score, rough):
        return rough
    return exact


def total_score(score: Floats, slots: Ints) -> float:
    """Return the total score of an assignment of jobs to time slots. A low total score is good.

    It is the sum of the scores of the jobs with a slot and of a penalty for each job without a slot.
    """
    placed = slots != NONE
    return float(np.sum(score[placed, slots[placed]]) + penalty(score) * np.sum(~placed))


def penalty(score: Floats) -> float:
    """Return the penalty for a job that is not assigned to a time slot.

    The penalty is so high that no difference between the scores of other jobs can outweigh it.
    """
    finite = np.where(np.isfinite(score), np.abs(score), 0.0)
    return 2.0 * float(np.sum(np.max(finite, axis=1, initial=0.0))) + 1e-9


def _planned(queue: DeferralQueue, table: StartTable) -> Bools:
    """Return the mask of the jobs whose start was already planned in an earlier plan, shape (d,).

    The earlier plan reserved resources for these jobs, which they must keep.
    """
    if queue.planned_s is None:
        return np.zeros(len(table.rows), np.bool_)
    planned: Bools = queue.planned_s[table.rows] >= queue.now_s
    return planned


def heuristic(queue: DeferralQueue, table: StartTable, score: Floats, fit: SlotFit) -> Ints:
    """Choose a start slot for each deferrable job so that the total score is low.

    The jobs are placed one after another, the job with the highest regret first. The regret of a job is the
    difference between its mean and its minimum score, per unit (GPU, core or node) and second. After all
    jobs are placed, single jobs are moved to other slots as long as the total score falls.
    """
    finite = np.where(np.isfinite(score), score, np.nan)
    work = queue.units[table.rows] * queue.time_s[table.rows]
    regret = (np.nanmean(finite, axis=1) - np.nanmin(finite, axis=1)) / work if len(score) else np.zeros(0)
    orders = [np.argsort(-regret, kind="stable"), np.argsort(-work, kind="stable")]
    best: Ints | None = None
    for order in orders:
        room = copy.deepcopy(fit)
        slots = place(queue, table, score, room, order)
        if room.limited and len(slots):
            slots = _improved(queue, table, score, fit, slots)
        if best is None or total_score(score, slots) < total_score(score, best):
            best = slots
    assert best is not None
    return best


def _improved(queue: DeferralQueue, table: StartTable, score: Floats, fit: SlotFit, slots: Ints) -> Ints:
    """Improve a plan of start slots by moving single jobs to better slots, in a few passes.

    A job is moved only if the total score of the plan falls. A lower score is better.
    """
    time_s = queue.time_s[table.rows]
    resources = [
        (int(queue.hardware[row]), float(queue.units[row]), float(queue.power_watts[row]))
        for row in table.rows
    ]
    room = copy.deepcopy(fit)
    slots = slots.copy()
    afters = fit.spans(np.maximum(slots, 0), time_s)[1]
    for job in np.flatnonzero(slots != NONE).tolist():
        room.take(int(slots[job]), int(afters[job]), *resources[job])
    minima = np.min(score, axis=1)
    for _ in range(_PASSES):
        moved = False
        for job, row in enumerate(slots.tolist()):
            if row != NONE and score[job, row] <= minima[job]:
                continue
            kind, units, watts = resources[job]
            count = int(table.count[job])
            if row != NONE:
                room.take(row, int(afters[job]), kind, -units, -watts)
            ends = fit.spans(np.arange(count), time_s[job])[1]
            scores = np.where(room.possible(ends, kind, units, watts), score[job, :count], np.inf)
            new = int(np.argmin(scores))
            if not np.isfinite(scores[new]):
                new = row
            if new != NONE:
                end = int(ends[new])
                room.take(new, end, kind, units, watts)
                moved |= new != row
                slots[job], afters[job] = new, end
        if not moved:
            break
    return slots


def solve(
    queue: DeferralQueue, table: StartTable, score: Floats, fit: SlotFit, limit_s: float
) -> Ints | None:
    """Choose a start slot for each job so that the total score is minimal.

    The method is integer programming (HiGHS).

    Returns:
        The slot of each job. None if scipy is not installed, the problem is too large, or no solution was
        found within `limit_s` seconds. None also if every solution uses resources that earlier plans have
        reserved.
    """
    jobs, starts = np.nonzero(np.isfinite(score))
    if not len(jobs) or len(jobs) > _MAX_VARIABLES or limit_s <= 0:
        return None
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_matrix
    except ImportError:
        return None
    count, slots = score.shape
    columns = len(jobs) + count  # the last variables stand for jobs without room
    once = coo_matrix(
        (np.ones(columns), (np.append(jobs, np.arange(count)), np.arange(columns))), (count, columns)
    )
    first, after = fit.spans(starts, queue.time_s[table.rows][jobs])
    lengths = after - first
    variable = np.repeat(np.arange(len(jobs)), lengths)
    slot = (
        np.repeat(first, lengths)
        + np.arange(len(variable))
        - np.repeat(np.cumsum(lengths) - lengths, lengths)
    )
    kinds, units = queue.hardware[table.rows][jobs], queue.units[table.rows][jobs]
    uses = [
        coo_matrix((units[variable], (kinds[variable] * slots + slot, variable)), (fit.free.size, columns))
    ]
    if fit.has_watts:
        watts = queue.power_watts[table.rows][jobs]
        power = (fit.free.shape[0] - 1) * slots + slot
        uses.append(coo_matrix((watts[variable], (power, variable)), (fit.free.size, columns)))
    # If more than the free resources are already taken, only further jobs are refused.
    room = LinearConstraint(sum(uses[1:], uses[0]), -np.inf, np.maximum(fit.free_for_deferred.ravel(), 0.0))
    costs = np.append(score[jobs, starts], np.full(count, penalty(score)))
    scale = max(1e-300, float(np.max(np.abs(costs))))
    result = milp(
        costs / scale,
        integrality=np.ones(columns),
        bounds=Bounds(0, np.append(np.ones(len(jobs)), ~_planned(queue, table))),
        constraints=[LinearConstraint(once, 1, 1), room],
        options={"time_limit": limit_s, "mip_rel_gap": 1e-6},
    )
    if result.x is None:
        return None
    chosen = np.full(count, NONE, np.int64)
    taken = np.flatnonzero(result.x[: len(jobs)] > 0.5)
    chosen[jobs[taken]] = starts[taken]
    return chosen
