"""Choice of the time at which each deferrable job should start.

The candidates are time slots with limited resources. The start with the lowest expected cost is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.deferral.slot_fit import SlotFit, reserve_urgent
from slurm_energy.deferral.start_margin import start_margins_s
from slurm_energy.deferral.suspension import CheckpointableJobs, planned_starts
from slurm_energy.deferral.tables import DeferralOptions, DeferralPlan, DeferralQueue, DeferralReason
from slurm_energy.deferral.window_costs import CostCurve, candidate_starts, cost_curve, start_costs
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.signals import SignalName

NONE = -1
"""Slot of a job without room."""
_BLOCK_JOBS = 2000
_EQUAL = 1e-9  # relative difference of scores that comes from rounding


@dataclass(frozen=True, slots=True)
class StartTable:
    """Costs of d deferrable jobs at each candidate start.

    Attributes:
        rows: row of each job in the `DeferralQueue`, shape (d,).
        starts_s: candidate starts, shape (s,). The first candidate is the current time.
        count: for each job, the number of allowed candidate starts, counted from the first candidate, shape
            (d,).
        cost: expected cost by start, shape (d, s); infinity means not allowed.
        spread: standard deviation of the cost, shape (d, s).
    """

    rows: Ints
    starts_s: Floats
    count: Ints
    cost: Floats
    spread: Floats

    def score(self, options: DeferralOptions) -> Floats:
        """Return the cost of each start plus the penalty for its uncertainty, shape (d, s).

        Scores that differ only by rounding errors are made equal, so that the earliest of these starts is
        chosen.
        """
        score = self.cost + options.uncertainty_weight * self.spread
        finite = np.isfinite(score)
        unit = _EQUAL * np.max(np.abs(score), axis=1, keepdims=True, initial=0.0, where=finite)
        step = np.where(unit > 0, unit, 1.0)
        return np.where(finite & (unit > 0), np.round(score / step) * step, score)


def start_table(queue: DeferralQueue, curve: CostCurve, options: DeferralOptions) -> StartTable:
    """Return the cost of each deferrable job of a queue for each possible start time."""
    rows = np.flatnonzero(queue.deferrable)
    latest = np.maximum(queue.now_s, queue.latest_start_s - start_margins_s(queue, options))[rows]
    starts = candidate_starts(queue.now_s, float(np.max(latest, initial=queue.now_s)), options.slot_s)
    count = np.searchsorted(starts, latest, side="right")
    earliest = np.searchsorted(starts, np.minimum(queue.earliest_s[rows], latest), side="left")
    cost, spread = np.empty((len(rows), len(starts))), np.empty((len(rows), len(starts)))
    for begin in range(0, len(rows), _BLOCK_JOBS):
        part = slice(begin, begin + _BLOCK_JOBS)
        jobs = rows[part]
        cost[part], spread[part] = start_costs(curve, starts, queue.time_s[jobs], queue.power_watts[jobs])
    columns = np.arange(len(starts))
    refused = (columns >= count[:, None]) | (columns < np.minimum(earliest, count - 1)[:, None])
    cost[refused] = np.inf
    table = StartTable(rows, starts, count, cost, spread)
    if options.suspend:
        _offer_suspension(queue, table, curve, options)
    return table


def _offer_suspension(
    queue: DeferralQueue, table: StartTable, curve: CostCurve, options: DeferralOptions
) -> None:
    """Take into account that jobs with checkpoints may be suspended later.

    The suspension of a job may make an early start cheaper. For each job that can write checkpoints, the
    function computes the best start and its cost for this case, and enters them into `table`.
    """
    jobs = np.flatnonzero(queue.checkpointable[table.rows])
    if not len(jobs):
        return
    rows = table.rows[jobs]
    end_by_s = queue.latest_start_s[rows] + queue.time_s[rows]
    none, restart_s = np.zeros(len(rows), np.int64), np.full(len(rows), options.restart_s)
    columns = CheckpointableJobs(
        queue.now_s, queue.time_s[rows], end_by_s, none, restart_s, ran_s=np.zeros(len(rows))
    )
    starts, costs = planned_starts(columns, curve, options)
    slot = np.searchsorted(table.starts_s, np.nan_to_num(starts), side="right") - 1
    valid = np.isfinite(starts) & (slot < table.count[jobs]) & (slot >= 0)
    jobs, slot, costs, rows = jobs[valid], slot[valid], costs[valid], rows[valid]
    better = queue.power_watts[rows] * costs < table.cost[jobs, slot]
    # The cost contains the penalty of uncertainty already.
    table.cost[jobs[better], slot[better]] = (queue.power_watts[rows] * costs)[better]
    table.spread[jobs[better], slot[better]] = 0.0


def place(queue: DeferralQueue, table: StartTable, score: Floats, fit: SlotFit, order: Ints) -> Ints:
    """Choose a start time (slot) for each deferrable job, one job after another.

    Each job gets the best slot that has enough free resources. A job that was already planned earlier has
    a slot. This slot stays reserved for the job until the job is placed, so that other jobs cannot take
    it. The job keeps this slot unless a better slot has enough free resources.

    Args:
        queue: the jobs.
        table: the deferrable jobs, and the times at which each of them may start.
        score: score of each job at each start, shape (d, s). Lower is better; infinity means that the
            start is not allowed.
        fit: free resources. The resources of placed jobs are subtracted.
        order: order in which the jobs are placed, shape (d,).

    Returns:
        The slot of each job, shape (d,); `NONE` means that no allowed slot has enough free resources.
    """
    best = np.argmin(score, axis=1) if len(score) else np.zeros(0, np.int64)
    time_s, units = queue.time_s[table.rows], queue.units[table.rows]
    watts, kinds = queue.power_watts[table.rows], queue.hardware[table.rows]
    if not fit.limited or fit.fits_all(best, time_s, kinds, units, watts):
        return best
    _, after = fit.spans(best, time_s)
    slots = np.full(len(best), NONE, np.int64)
    planned = _reserve_planned(queue, table, fit, order)
    for job in order.tolist():
        row, end = int(best[job]), int(after[job])
        resources = int(kinds[job]), float(units[job]), float(watts[job])
        if job in planned:
            fit.take(*planned[job], resources[0], -resources[1], -resources[2])
        if not fit.fits(row, end, *resources):
            count = int(table.count[job])
            ends = fit.spans(np.arange(count), time_s[job])[1]
            possible = fit.possible(ends, *resources)
            if job in planned:
                possible[planned[job][0]] = True
            scores = np.where(possible, score[job, :count], np.inf)
            row = int(np.argmin(scores))
            if not np.isfinite(scores[row]):
                continue  # it may start at once
            end = int(ends[row])
        fit.take(row, end, *resources)
        slots[job] = row
    return slots


def _reserve_planned(
    queue: DeferralQueue, table: StartTable, fit: SlotFit, order: Ints
) -> dict[int, tuple[int, int]]:
    """Reserve again the time slots that were planned for deferred jobs in earlier planning cycles.

    A slot is reserved only if the free resources suffice. When the slots were planned, resources were
    also left free for jobs that may arrive later. This function does not check this again. Otherwise, if
    the forecast of arrivals rises, all held jobs would be released together.

    Returns:
        By job, the first reserved slot and the slot after the last reserved slot.
    """
    if queue.planned_s is None:
        return {}
    planned_s = queue.planned_s[table.rows]
    slots = np.searchsorted(table.starts_s, np.nan_to_num(planned_s, nan=-np.inf))
    reserved = {}
    for job in order.tolist():
        slot = int(slots[job])
        if slot >= table.count[job] or not planned_s[job] >= table.starts_s[0]:
            continue
        row = table.rows[job]
        end = int(fit.spans(np.array([slot]), queue.time_s[row])[1][0])
        resources = int(queue.hardware[row]), float(queue.units[row]), float(queue.power_watts[row])
        if fit.fits(slot, end, *resources, urgent=True):
            fit.take(slot, end, *resources)
            reserved[job] = slot, end
    return reserved


def best_now(table: StartTable, score: Floats, options: DeferralOptions) -> Bools:
    """Return a mask of the deferrable jobs that should start at once, shape (d,).

    A job should start at once in two cases: if no later start saves enough, or if only a small fraction
    of the possible starts has a better score than a start now.
    """
    now = score[:, :1]
    better = np.sum(score < now, axis=1)
    best = np.min(score, axis=1, initial=np.inf)
    saving = table.cost[:, 0] - best
    enough = saving > options.min_saving * np.abs(table.cost[:, 0])
    result: Bools = (better <= options.best_share * table.count) & np.isfinite(now[:, 0])
    result |= np.isfinite(now[:, 0]) & ~enough
    return result


def windowed_plan(queue: DeferralQueue, options: DeferralOptions, signal: SignalName) -> DeferralPlan:
    """Return the plan of the deferral policies `cheapest` and `cleanest`.

    The plan is made by these rules. A job starts at once if starting now is one of the cheapest starts
    within its permitted delay (slack). The option `best_share` states which fraction of the starts counts as
    cheapest. A job also starts at once if no later start saves more than `min_saving`. Any other job starts
    at the best time slot that has free resources. Jobs choose their slots in the order of their latest
    starts.

    Args:
        queue: the pending jobs.
        options: parameters of the deferral policies.
        signal: signal to minimise: price or carbon intensity.
    """
    curve = cost_curve(queue.signals, signal)
    if curve is None:
        return immediate_plan(queue, DeferralReason.NO_FORECAST, signal)
    table = start_table(queue, curve, options)
    score = table.score(options)
    now = best_now(table, score, options)
    score[now, 0] = -np.inf
    fit = SlotFit(table.starts_s, queue.capacity)
    reserve_urgent(queue, table.starts_s, fit)
    order = np.lexsort((table.rows, queue.latest_start_s[table.rows], ~now))
    return plan_of(queue, table, place(queue, table, score, fit, order), signal)


def plan_of(queue: DeferralQueue, table: StartTable, slots: Ints, signal: SignalName) -> DeferralPlan:
    """Return the plan in which the deferrable jobs start in the given time slots.

    Args:
        queue: the pending jobs.
        table: the deferrable jobs and the candidate starts.
        slots: slot of each deferrable job, shape (d,). `NONE` means that no slot has enough free resources
            for the job. Such a job may start at once.
        signal: the signal that was minimised, for example the price.
    """
    plan = immediate_plan(queue, DeferralReason.URGENT, signal)
    chosen = np.maximum(slots, 0)
    jobs = np.arange(len(slots))
    plan.start_s[table.rows] = table.starts_s[chosen]
    reason = np.where(slots > 0, DeferralReason.DEFERRED, DeferralReason.GOOD_NOW)
    reason[slots == NONE] = DeferralReason.NO_ROOM
    reason[(slots == 0) & (table.count <= 1)] = DeferralReason.NO_SLACK
    plan.reason[table.rows] = reason
    if len(slots):
        plan.cost_now[table.rows] = _finite(table.cost[:, 0])
        plan.cost[table.rows] = _finite(table.cost[jobs, chosen])
        plan.deviation[table.rows] = table.spread[jobs, chosen]
    return plan


def immediate_plan(queue: DeferralQueue, reason: DeferralReason, signal: SignalName) -> DeferralPlan:
    """Return a plan that starts all jobs at once.

    In the plan, deferrable jobs have the reason `reason`, and all other jobs have the reason `URGENT`.
    """
    reasons = np.where(queue.deferrable, int(reason), int(DeferralReason.URGENT))
    return DeferralPlan(
        job_id=queue.job_id,
        start_s=np.full(queue.count, queue.now_s),
        reason=reasons.astype(np.int64),
        cost_now=np.full(queue.count, np.nan),
        cost=np.full(queue.count, np.nan),
        deviation=np.full(queue.count, np.nan),
        rejected=np.zeros(queue.count, np.bool_),
        unit="g" if signal is SignalName.CARBON else "currency",
    )


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)
