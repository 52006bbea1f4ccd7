"""Compiled functions that plan the starts of pending jobs under the scheduling policy `metis`.

The results are equal to those of `scheduling.rankings.metis`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from slurm_energy.scheduling.rankings.metis import WAITING_JOBS
from slurm_energy.simulator.engine_columns import SimulationColumns
from slurm_energy.simulator.kernels.compiled import compiled
from slurm_energy.simulator.kernels.pending_bits import following
from slurm_energy.simulator.kernels.score_kernels import lowest_slack_s
from slurm_energy.simulator.kernels.start_plan import (
    AGED,
    CHOICE,
    FREE,
    JOB,
    StartPlan,
    begin_plan,
    earliest_start_s,
    take_units,
)
from slurm_energy.simulator.workloads.job_columns import (
    DEADLINE_S,
    FIRST,
    ID_RANK,
    KIND,
    LAST,
    LATEST_S,
    PACKING,
    POSSIBLE,
    SHORTEST_S,
    SUBMIT_S,
    TIME_S,
    UNITS,
    URGENT,
    JobColumns,
    PolicyRules,
)

_IMPATIENCE, _DELAY, _CROWD = 1, 2, 3
"""Positions in `PolicyRules.weights`."""
_AGED, _URGENT, _NORMAL = range(3)
"""Groups of jobs in the order in which they are placed, as the tiers of `scheduling.ranking`."""
NO_JOB: Final = -1


@compiled
def place_jobs(policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now_s: float) -> int:
    """Plan the pending jobs for the policy `metis`, one after another.

    The planned jobs are stored in `StartPlan.placed`. The function returns their number.
    """
    plan, pending = state.plan, state.pending
    begin_plan(jobs, state.running, plan, state.free, now_s)
    pressure = (pending.tally[0] - 1) / (state.running.tally[0] + 1)
    max_delay = 1.0 + policy.weights[_DELAY] / (1.0 + policy.weights[_CROWD] * pressure)
    placed, waiting, stage = 0, 0, _AGED
    place, first, slack_s, number, row = -1, 0, -np.inf, -1, plan.urgent_jobs - 1
    while _has_room(plan, waiting):
        job = NO_JOB
        if stage == _AGED:
            place = following(pending.places, place + 1)
            if place >= 0 and _is_aged(policy, jobs, plan.at_place[place], now_s):
                job = plan.at_place[place]
        elif stage == _URGENT:
            job, first = _next_urgent(policy, jobs, state, now_s, first, slack_s, number)
            if job != NO_JOB:
                slack_s, number = _slack_s(jobs, job, now_s), jobs.whole[job, ID_RANK]
        else:
            row = job = following(pending.in_order, row + 1)
            if job != NO_JOB and _is_aged(policy, jobs, job, now_s):
                continue
        if job == NO_JOB and stage == _NORMAL:
            break
        if job == NO_JOB:
            stage += 1
        else:
            is_aged = stage == _AGED
            placed, waiting = _place(policy, jobs, state, now_s, job, is_aged, max_delay, placed, waiting)
    return placed


@compiled
def _has_room(plan: StartPlan, waiting: int) -> bool:
    """Return whether a further job can be added to the plan of job starts.

    This is the case if any units (such as GPUs) are free, and if fewer jobs wait in the plan than it can
    hold.
    """
    free = 0
    for kind in range(len(plan.tally)):
        free += plan.tally[kind, FREE]
    return waiting < WAITING_JOBS and free > 0


@compiled
def _is_aged(policy: PolicyRules, jobs: JobColumns, job: int, now_s: float) -> bool:
    return bool(max(0.0, now_s - jobs.real[job, SUBMIT_S]) >= policy.wait_bound_s)


@compiled
def _slack_s(jobs: JobColumns, job: int, now_s: float) -> float:
    return float(jobs.real[job, DEADLINE_S] - (now_s + jobs.real[job, SHORTEST_S]))


@compiled
def _next_urgent(
    policy: PolicyRules,
    jobs: JobColumns,
    state: SimulationColumns,
    now_s: float,
    first: int,
    last_slack_s: float,
    last_number: int,
) -> tuple[int, int]:
    """Return the next job with a deadline in the order of slack; ties are broken by job id.

    Jobs with a deadline are stored in the order of a lower bound of the slack. Rounding may change the order
    of jobs with nearly equal bounds.

    Args:
        policy: parameters of the scheduling policy.
        jobs: columns of all jobs and their shapes (ways to run a job).
        state: state of the simulation.
        now_s: current time in seconds.
        first: first row to search; no job is left in earlier rows.
        last_slack_s: slack of the previously returned job.
        last_number: ID_RANK of the previously returned job.

    Returns:
        Row of the job (-1 if no job is left), and the new value of `first`.
    """
    bits, end = state.pending.in_order, state.plan.urgent_jobs
    best, best_slack_s, best_number = NO_JOB, np.inf, 0
    job, is_leading = following(bits, first), True
    while 0 <= job < end and lowest_slack_s(jobs.real[job, LATEST_S], now_s) <= best_slack_s:
        slack_s, number = _slack_s(jobs, job, now_s), jobs.whole[job, ID_RANK]
        is_past = slack_s < last_slack_s or (slack_s == last_slack_s and number <= last_number)
        if is_past or _is_aged(policy, jobs, job, now_s):
            job = following(bits, job + 1)
            if is_leading:
                first = job
            continue
        is_leading = False
        if slack_s < best_slack_s or (slack_s == best_slack_s and number < best_number):
            best, best_slack_s, best_number = job, slack_s, number
        job = following(bits, state.plan.alike_end[job])  # equal slack and higher ids
    return best, max(0, first)


@compiled
def _place(
    policy: PolicyRules,
    jobs: JobColumns,
    state: SimulationColumns,
    now_s: float,
    job: int,
    is_aged: bool,
    max_delay: float,
    placed: int,
    waiting: int,
) -> tuple[int, int]:
    """Plan the start of a job.

    Return the new numbers of jobs in the plan and of jobs that the plan starts later, as the arguments
    `placed` and `waiting` count them.

    Args:
        policy: parameters of the scheduling policy.
        jobs: columns of all jobs and of their shapes (ways to run a job).
        state: state of the simulation.
        now_s: current time in seconds.
        job: row of the job in `jobs`.
        is_aged: whether the job has waited longer than the bound on waiting.
        max_delay: largest allowed time until the end of the job, divided by the shortest possible time
            until this end.
        placed: number of jobs in `StartPlan.placed`, which may start now or wait for units.
        waiting: number of jobs that are planned to start later.
    """
    plan = state.plan
    shape = _shape(policy, jobs, plan, now_s, job, max_delay)
    start_s = plan.start_s[shape - jobs.whole[job, FIRST]]
    if start_s == np.inf:
        return placed, waiting
    kind, units = jobs.need[shape, KIND], jobs.need[shape, UNITS]
    take_units(plan, kind, start_s, units, jobs.load[shape, TIME_S], now_s)
    starts = start_s <= now_s
    if starts:
        plan.tally[kind, FREE] -= units
    else:
        waiting += 1
    fits_now = units <= state.free[kind]
    is_possible = jobs.need[shape, POSSIBLE] and (policy.discipline != PACKING or is_aged or fits_now)
    if starts or (is_possible and (is_aged or not fits_now)):
        plan.placed[JOB, placed], plan.placed[CHOICE, placed], plan.placed[AGED, placed] = job, shape, is_aged
        placed += 1
    return placed, waiting


@compiled
def _shape(
    policy: PolicyRules, jobs: JobColumns, plan: StartPlan, now_s: float, job: int, max_delay: float
) -> int:
    """Return the shape (set of resources) in which the policy METIS plans to run a job.

    The earliest start in each shape of the job is written to the plan.
    """
    first, last = jobs.whole[job, FIRST], jobs.whole[job, LAST]
    deadline_s, is_urgent = jobs.real[job, DEADLINE_S], jobs.whole[job, URGENT] == 1
    soonest_s, meets = np.inf, False
    for shape in range(first, last):
        time_s = jobs.load[shape, TIME_S]
        start_s = earliest_start_s(plan, jobs.need[shape, KIND], jobs.need[shape, UNITS], time_s, now_s)
        plan.start_s[shape - first] = start_s
        done_s = start_s - now_s + time_s
        soonest_s = min(soonest_s, done_s)
        meets = meets or (is_urgent and now_s + done_s <= deadline_s)
    best, best_cost = first, np.inf
    for shape in range(first, last):
        wait_s = plan.start_s[shape - first] - now_s
        done_s = wait_s + jobs.load[shape, TIME_S]
        cost = np.inf
        if is_urgent and not meets:
            cost = done_s
        elif is_urgent and now_s + done_s <= deadline_s:
            cost = plan.effort[shape] * done_s
        elif not is_urgent and done_s <= max_delay * soonest_s:
            cost = plan.effort[shape] * (done_s + policy.weights[_IMPATIENCE] * wait_s)
        if cost < best_cost:
            best, best_cost = shape, cost
    return int(best)
