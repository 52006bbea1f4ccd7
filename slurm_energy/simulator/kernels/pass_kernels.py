"""Compiled scheduling pass: starts the pending jobs that may start now.

It is used by the column engine, the fast engine of the simulator for all built-in policies.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.engine_columns import SimulationColumns, start_job
from slurm_energy.simulator.job_search import HeadReservation, first_job, fits
from slurm_energy.simulator.kernels.compiled import compiled, compiled_with_memory
from slurm_energy.simulator.kernels.metis_kernels import place_jobs
from slurm_energy.simulator.kernels.pending_bits import member
from slurm_energy.simulator.kernels.pending_tree import longest_wait_s, may_start
from slurm_energy.simulator.kernels.reservation_kernels import ranked_jobs, start_with_reservations
from slurm_energy.simulator.kernels.score_kernels import Moment, expected_s, least_edp, user_factors
from slurm_energy.simulator.kernels.start_plan import AGED, CHOICE, JOB
from slurm_energy.simulator.results.user_columns import settle
from slurm_energy.simulator.workloads.job_columns import (
    BLEND,
    CONSERVATIVE,
    EASY,
    KEY,
    KIND,
    METIS,
    PACKING,
    SUBMIT_S,
    UNITS,
    JobColumns,
    PolicyRules,
)


@compiled_with_memory
def run_pass(
    policy: PolicyRules, jobs: JobColumns, key_order: Floats, state: SimulationColumns, now_s: float
) -> None:
    """Start the pending jobs that may start now. At least one job must be pending.

    Args:
        policy: parameters of the scheduling policy.
        jobs: columns of all jobs and their shapes (possible sets of resources).
        key_order: values of the sort key (KEY) of all jobs in ascending order (KEY_RANK); used by the policy
            `blend`.
        state: state of the simulation.
        now_s: current time in seconds.
    """
    settle(state.users, now_s)
    if not may_start(state.pending, state.free):
        return
    now = _moment(policy, jobs, key_order, state, now_s)
    plans, is_aged = policy.code == METIS, longest_wait_s(state.pending, now_s) >= policy.wait_bound_s
    reserves = policy.discipline == CONSERVATIVE or (policy.discipline == PACKING and (plans or is_aged))
    if plans or reserves:
        if plans:
            placed = state.plan.placed[:, : place_jobs(policy, jobs, state, now_s)]
            order, shapes, aged = placed[JOB], placed[CHOICE], placed[AGED]
        else:
            order, shapes, aged = ranked_jobs(policy, jobs, state, now)
        if reserves:
            start_with_reservations(policy, jobs, state, now_s, order, shapes, aged)
        else:
            _start_placed(policy, jobs, state, now_s, order, shapes)
    elif policy.discipline == PACKING:
        _start_all(policy, jobs, state, now, HeadReservation(-1, np.inf, 0))
    else:
        _start_in_order(policy, jobs, state, now)


@compiled
def _moment(
    policy: PolicyRules, jobs: JobColumns, key_order: Floats, state: SimulationColumns, now_s: float
) -> Moment:
    """Return the values at the current time on which the scores of all pending jobs depend.

    Examples are the current time, the usage of the users, and the numbers of free units (GPUs, cores or
    nodes).
    """
    users, best_usage = state.users, 0.0
    if len(users.share) > 0:
        best_usage = user_factors(policy, users.unit_s, users.joules, users.share, users.factor)
    free = state.free
    if policy.discipline == PACKING:
        free = state.offered
        for kind in range(len(free)):
            free[kind] = state.free[kind]
    middle = _median(policy, jobs, key_order, state, free, now_s) if policy.code == BLEND else 0.0
    return Moment(now_s, users.factor, best_usage, middle, free)


@compiled
def _start_placed(
    policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now_s: float, order: Ints, shapes: Ints
) -> None:
    """Start jobs in an order that was computed before, until one does not fit.

    Under EASY backfill, later jobs may still start if they do not delay the job that does not fit.
    `_start_in_order` does the same for jobs in the order of their scores.
    """
    held = HeadReservation(-1, np.inf, 0)
    for index in range(len(order)):
        job, shape = order[index], shapes[index]
        if fits(jobs, job, shape, now_s, state.free, held):
            end_s = now_s + expected_s(jobs, job, shape)
            start_job(policy, jobs, state, now_s, job, shape)
            held = _without(jobs, held, shape, end_s)
        elif policy.discipline != EASY:
            return
        elif held.kind < 0:
            held = _reserve(jobs, state, now_s, shape)


@compiled
def _without(jobs: JobColumns, held: HeadReservation, shape: int, end_s: float) -> HeadReservation:
    """Return the reservation of the first waiting job after another job has started before it.

    The reservation has a start time and a number of spare units, which the first waiting job does not
    need. If the other job may still run at this start time, it uses up spare units.

    Args:
        jobs: columns of all jobs.
        held: the reservation so far.
        shape: row of the resources that the other job uses.
        end_s: expected end of the other job.
    """
    if jobs.need[shape, KIND] != held.kind or end_s <= held.start_s:
        return held
    return HeadReservation(held.kind, held.start_s, held.spare - jobs.need[shape, UNITS])


@compiled
def _start_in_order(policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now: Moment) -> None:
    """Start jobs in order until one does not fit.

    Under EASY backfill, later jobs may still start if they do not delay the job that does not fit.
    """
    nothing = HeadReservation(-1, np.inf, 0)
    while may_start(state.pending, state.free):
        job, shape = first_job(policy, state.pending, jobs, now, state.free, nothing, False)
        if job < 0:
            return
        if fits(jobs, job, shape, now.now_s, state.free, nothing):
            start_job(policy, jobs, state, now.now_s, job, shape)
            continue
        if policy.discipline == EASY:
            _start_all(policy, jobs, state, now, _reserve(jobs, state, now.now_s, shape))
        return


@compiled
def _start_all(
    policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now: Moment, held: HeadReservation
) -> None:
    """Start, in order, all jobs that fit without delaying a reservation."""
    while may_start(state.pending, state.free):
        job, shape = first_job(policy, state.pending, jobs, now, state.free, held, True)
        if job < 0:
            return
        end_s = now.now_s + expected_s(jobs, job, shape)
        start_job(policy, jobs, state, now.now_s, job, shape)
        held = _without(jobs, held, shape, end_s)


@compiled
def _reserve(jobs: JobColumns, state: SimulationColumns, now_s: float, shape: int) -> HeadReservation:
    """Reserve units for a job that cannot start now, and return the reservation.

    A unit is a GPU, a core or a node. The reservation is for the shape (way to run the job) that was chosen
    for the job. It begins when running jobs are expected to have released enough units.
    """
    running, count = state.running, state.running.tally[0]
    kind, need = jobs.need[shape, KIND], jobs.need[shape, UNITS]
    units, start_s, index = state.free[kind], now_s, 0
    while index < count and (units < need or running.expected_s[index] <= now_s):
        if jobs.need[running.expected_shape[index], KIND] == kind:
            units += jobs.need[running.expected_shape[index], UNITS]
            start_s = max(now_s, running.expected_s[index])
        index += 1
    while index < count and running.expected_s[index] <= start_s:
        if jobs.need[running.expected_shape[index], KIND] == kind:
            units += jobs.need[running.expected_shape[index], UNITS]
        index += 1
    return HeadReservation(kind, start_s, units - need)


@compiled_with_memory
def _median(
    policy: PolicyRules,
    jobs: JobColumns,
    key_order: Floats,
    state: SimulationColumns,
    free: Ints,
    now_s: float,
) -> float:
    """Return the median of the lowest energy-delay products of the pending jobs.

    The lowest energy-delay product of a job is that of its best shape (possible choice of resources).
    Under the scheduling discipline `packing`, only shapes that fit into the free units (argument `free`)
    are considered. For a job that has waited longer than the bound on waiting, all shapes are considered.
    """
    pending, count = state.pending, state.pending.tally[0]
    if policy.discipline == PACKING:
        values, size = np.empty(count), 0
        for index in range(count):
            job = pending.jobs[index]
            aged = now_s - jobs.real[job, SUBMIT_S] >= policy.wait_bound_s
            edp = jobs.real[job, KEY] if aged else least_edp(jobs, job, free)
            if not np.isinf(edp):
                values[size] = edp
                size += 1
        values = np.sort(values[:size])
        return (values[(size - 1) // 2] + values[size // 2]) / 2.0 if size > 0 else 0.0
    count = 0
    for members in pending.keys.counts:
        count += members
    if count == 0:
        return 0.0
    middle = key_order[member(pending.keys, (count - 1) // 2)]
    if count % 2 == 0:
        middle = (middle + key_order[member(pending.keys, count // 2)]) / 2.0
    return float(middle)
