"""Compiled preemption of running jobs for jobs with deadlines, for the fast (column) engine.

The results equal those of the uncompiled module `simulator.deadline_preemption`.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.simulator.engine_columns import SHAPE, SimulationColumns, interrupt_job, loss, start_job
from slurm_energy.simulator.kernels.compiled import compiled, compiled_with_memory
from slurm_energy.simulator.workloads.job_columns import (
    DEADLINE_S,
    FIRST,
    KIND,
    LAST,
    LEFT,
    RISK_S,
    ROW,
    TIME_S,
    UNITS,
    URGENT,
    JobColumns,
    PolicyRules,
)


@compiled
def preempt_for_deadlines(
    policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now_s: float
) -> None:
    """Interrupt jobs without a deadline if a pending job would otherwise miss its deadline."""
    pending = state.pending
    index = 0
    while index < pending.tally[1]:
        job = pending.urgent[index]
        if now_s < jobs.real[job, RISK_S] or not _preempt(policy, jobs, state, now_s, job):
            index += 1


@compiled_with_memory
def _preempt(policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now_s: float, job: int) -> bool:
    """Interrupt running jobs so that a job at risk can start, and start this job.

    The interrupted jobs are the set that wastes the least energy. If the job would miss its deadline in spite
    of all interruptions, nothing is done.

    Returns:
        Whether the job started.
    """
    left_s, left = jobs.real[job, DEADLINE_S] - now_s, jobs.real[job, LEFT]
    first, last = jobs.whole[job, FIRST], jobs.whole[job, LAST]
    for shape in range(first, last):
        in_time = left * jobs.load[shape, TIME_S] <= left_s
        if in_time and jobs.need[shape, UNITS] <= state.free[jobs.need[shape, KIND]]:
            return False
    others, lost = _interruptible(policy, jobs, state, now_s)
    best, best_lost, best_count = -1, np.inf, 0
    victims = np.empty(0, np.int64)
    for shape in range(first, last):
        kind = jobs.need[shape, KIND]
        if left * jobs.load[shape, TIME_S] > left_s:
            continue
        missing = max(0, jobs.need[shape, UNITS] - state.free[kind])
        found, selected = _victims(jobs, state, others, lost, kind, missing)
        if not found:
            continue
        total = _total(lost, selected)
        if best < 0 or total < best_lost or (total == best_lost and len(selected) < best_count):
            best, best_lost, best_count = shape, total, len(selected)
            victims = others[selected]
    if best < 0:
        return False
    for victim in victims:
        interrupt_job(policy, jobs, state, now_s, int(victim))
    start_job(policy, jobs, state, now_s, job, best)
    return True


@compiled_with_memory
def _interruptible(
    policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now_s: float
) -> tuple[Ints, Floats]:
    """Return the running jobs without a deadline, and the joules that each interruption would waste.

    The jobs are in the order of their rows in the workload.
    """
    count, size = state.running.tally[0], 0
    others, rows = np.empty(count, np.int64), np.empty(count, np.int64)
    for index in range(count):
        job = state.running.job[index]
        if not jobs.whole[job, URGENT]:
            others[size], rows[size] = job, jobs.whole[job, ROW]
            size += 1
    others = others[:size][np.argsort(rows[:size])]
    lost = np.empty(size)
    for index in range(size):
        lost[index] = loss(policy, jobs, state, now_s, others[index])[0]
    return others, lost


@compiled_with_memory
def _victims(
    jobs: JobColumns, state: SimulationColumns, others: Ints, lost: Floats, kind: int, missing: int
) -> tuple[bool, Ints]:
    """Select the running jobs to interrupt for an urgent job.

    Return two values: whether the interruptions free enough units, and the selected jobs as indices of
    `others`. A unit is a GPU, a core or a node.

    The selection is the same as by `scheduling.preemption.victims`.
    """
    candidates, units = np.empty(len(others), np.int64), np.empty(len(others), np.int64)
    size, whole = 0, 0
    for index in range(len(others)):
        shape = state.accounts.whole[others[index], SHAPE]
        if jobs.need[shape, KIND] == kind:
            candidates[size], units[size] = index, jobs.need[shape, UNITS]
            whole += units[size]
            size += 1
    if whole < missing:
        return False, candidates[:0]
    candidates, units = candidates[:size], units[:size]
    order = np.argsort(lost[candidates] / units, kind="mergesort")
    candidates, units = candidates[order], units[order]
    joules, counts = np.full(missing + 1, np.inf), np.zeros(missing + 1, np.int64)
    taken = np.zeros((size, missing + 1), np.bool_)
    joules[0] = 0.0
    for index in range(size):
        for amount in range(missing, 0, -1):
            shorter = max(0, amount - units[index])
            way, number = joules[shorter] + lost[candidates[index]], counts[shorter] + 1
            if way < joules[amount] or (way == joules[amount] and number < counts[amount]):
                joules[amount], counts[amount], taken[index, amount] = way, number, True
    return True, _traced(candidates, units, taken, missing)


@compiled_with_memory
def _traced(candidates: Ints, units: Ints, taken: Bools, missing: int) -> Ints:
    """Return the running jobs that must be interrupted, in the order of `candidates`.

    `taken` is the table that the search for the cheapest set of jobs has filled. This function follows the
    table back to the jobs of that set.
    """
    selected, size, amount = np.empty(len(candidates), np.int64), 0, missing
    for index in range(len(candidates) - 1, -1, -1):
        if amount > 0 and taken[index, amount]:
            selected[size] = candidates[index]
            size += 1
            amount = max(0, amount - units[index])
    return selected[:size][::-1]


@compiled
def _total(lost: Floats, selected: Ints) -> float:
    """Return the energy in joules that is wasted if the selected jobs are interrupted.

    The sum is correctly rounded except in rare cases.
    """
    total, error = 0.0, 0.0
    for index in selected:
        value = lost[index]
        rounded = total + value
        if abs(total) >= abs(value):
            error += (total - rounded) + value
        else:
            error += (value - rounded) + total
        total = rounded
    return total + error
