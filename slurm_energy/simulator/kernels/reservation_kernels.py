"""Compiled scheduling pass that reserves future resources for several waiting jobs.

A scheduling pass decides once which pending jobs start. Two disciplines use this pass. Conservative
backfill reserves for every job that cannot start. Packing reserves only for jobs that have waited too
long (aged jobs). The free units (GPUs, cores or nodes) over time are a step function as in
`scheduling.availability`.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.engine_columns import SimulationColumns, start_job
from slurm_energy.simulator.kernels.compiled import compiled, compiled_with_memory
from slurm_energy.simulator.kernels.pending_tree import may_start
from slurm_energy.simulator.kernels.score_kernels import NEVER, Moment, expected_s, rank
from slurm_energy.simulator.workloads.job_columns import (
    CONSERVATIVE,
    ID_RANK,
    KIND,
    UNITS,
    JobColumns,
    PolicyRules,
)


@compiled_with_memory
def start_with_reservations(
    policy: PolicyRules,
    jobs: JobColumns,
    state: SimulationColumns,
    now_s: float,
    order: Ints,
    shapes: Ints,
    aged: Ints,
) -> None:
    """Start, in order, the jobs that fit without delaying a reservation.

    Under the discipline `conservative`, every job that cannot start gets a reservation. Under `packing`,
    only jobs that have waited longer than the bound on waiting get a reservation.

    Args:
        policy: parameters of the scheduling policy.
        jobs: columns of all jobs and of their shapes (ways to run a job).
        state: state of the simulation.
        now_s: current time in seconds.
        order: jobs in the order of the policy, array of shape (p,).
        shapes: chosen shape of each of these jobs, array of shape (p,).
        aged: for each job, whether it has waited longer than the bound on waiting, array of shape (p,).
    """
    size = 0  # of the step function; 0: no job has a reservation
    times, free = np.empty(0), np.empty((0, 0), np.int64)
    for index in range(len(order)):
        if not may_start(state.pending, state.free):
            return  # reservations no longer matter in this pass
        job, shape = order[index], shapes[index]
        kind, units = jobs.need[shape, KIND], jobs.need[shape, UNITS]
        length_s = expected_s(jobs, job, shape)
        if units <= state.free[kind] and (size == 0 or _fits(times, free, size, 0, kind, units, length_s)):
            start_job(policy, jobs, state, now_s, job, shape)
            if size > 0:
                size = _take(times, free, size, now_s, length_s, kind, units)
            continue
        if policy.discipline != CONSERVATIVE and not aged[index]:
            continue
        if size == 0:
            most = state.running.tally[0] + 2 * len(order) + 4
            times, free = np.empty(most), np.empty((most, len(state.free)), np.int64)
            size = _availability(jobs, state, now_s, times, free)
        for start in range(size):
            if _fits(times, free, size, start, kind, units, length_s):
                size = _take(times, free, size, times[start], length_s, kind, units)
                break


@compiled_with_memory
def ranked_jobs(
    policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now: Moment
) -> tuple[Ints, Ints, Ints]:
    """Return the pending jobs in the order of the scheduling policy, as three arrays.

    The arrays contain the jobs, the shape (set of resources) of each job, and whether the job is aged. An
    aged job has waited longer than the bound on waiting.
    """
    count, size = state.pending.tally[0], 0
    tiers, scores = np.empty(count), np.empty(count)
    found, shapes, ids = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    for index in range(count):
        job = state.pending.jobs[index]
        tier, score, shape = rank(policy, jobs, job, now)
        if tier < NEVER:
            tiers[size], scores[size], ids[size] = tier, score, jobs.whole[job, ID_RANK]
            found[size], shapes[size] = job, shape
            size += 1
    order = np.argsort(ids[:size], kind="mergesort")
    order = order[np.argsort(scores[:size][order], kind="mergesort")]
    order = order[np.argsort(tiers[:size][order], kind="mergesort")]
    aged = np.empty(size, np.int64)
    for index in range(size):
        aged[index] = tiers[order[index]] == 0.0
    return found[:size][order], shapes[:size][order], aged


@compiled_with_memory
def _availability(jobs: JobColumns, state: SimulationColumns, now_s: float, times: Floats, free: Ints) -> int:
    """Compute how many units of the cluster are free over time.

    A unit is a GPU, a core or a whole node. A running job frees its units at its expected end. The function
    writes the time of each step to `times` and the free units to `free`, and returns the number of steps.
    """
    times[0], free[0] = now_s, state.free
    size = 1
    for index in range(state.running.tally[0]):
        time_s, shape = state.running.expected_s[index], state.running.expected_shape[index]
        if time_s > times[size - 1]:
            times[size], free[size] = time_s, free[size - 1]
            size += 1
        free[size - 1, jobs.need[shape, KIND]] += jobs.need[shape, UNITS]
    return size


@compiled
def _fits(times: Floats, free: Ints, size: int, start: int, kind: int, units: int, length_s: float) -> bool:
    """Return whether enough units are free for `length_s` seconds from the time of step `start` on.

    The free units over time are a step function. A unit is a GPU, a core or a node.
    """
    end_s = times[start] + length_s
    if free[start, kind] < units:
        return False
    index = start + 1
    while index < size and times[index] < end_s:
        if free[index, kind] < units:
            return False
        index += 1
    return True


@compiled_with_memory
def _take(
    times: Floats, free: Ints, size: int, start_s: float, length_s: float, kind: int, units: int
) -> int:
    """Reserve units of the cluster for `length_s` seconds from `start_s` on.

    The free units over time are stored as steps. The reservation may add steps. Return the new number of
    steps.
    """
    size, first = _split(times, free, size, start_s)
    last = size
    if not np.isinf(length_s):
        size, last = _split(times, free, size, start_s + length_s)
    for index in range(first, last):
        free[index, kind] -= units
    return size


@compiled_with_memory
def _split(times: Floats, free: Ints, size: int, time_s: float) -> tuple[int, int]:
    """Insert an entry at `time_s` into a table of the free units over time.

    The number of free units is a step function of time. The new entry repeats the number that holds at
    this time. Nothing is inserted if the table already has an entry at `time_s`.

    Return the number of entries, and the index of the entry at `time_s`.
    """
    index = int(np.searchsorted(times[:size], time_s))
    if index < size and times[index] == time_s:
        return size, index
    for later in range(size, index, -1):
        times[later], free[later] = times[later - 1], free[later - 1]
    times[index], free[index] = time_s, free[index - 1]
    return size + 1, index
