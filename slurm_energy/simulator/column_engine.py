"""Compiled simulation of the built-in policies, without a budget, node power states and interruptions.

It covers all built-in policies with rigid and malleable jobs on several kinds of nodes, without backfill
(strict) or with EASY backfill. It yields exactly the schedule of the general engine; tests compare them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.scheduling.registry import Policy
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.compiled import compiled
from slurm_energy.simulator.engine_support import is_constrained
from slurm_energy.simulator.pass_kernels import (
    HeadReservation,
    Moment,
    PendingColumns,
    backfill_job,
    enter,
    first_job,
    leave,
    limit_s,
    may_fit,
    moment,
    no_jobs,
    reserve,
)
from slurm_energy.simulator.running_columns import RunningColumns, next_end_s, no_running_jobs, pop, push
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.score_kernels import (
    BLEND,
    CODES,
    HADES,
    MULTIFACTOR,
    THEMIS,
    JobColumns,
    PolicyRules,
    job_columns,
    rules,
    user_factors,
)
from slurm_energy.simulator.simulation_result import EnergyAccounts, JobOutcome, SimulationResult
from slurm_energy.simulator.user_columns import UserColumns, hold, no_usage, settle
from slurm_energy.simulator.workload import Workload

_USAGE_POLICIES: Final = frozenset((BLEND, HADES, MULTIFACTOR, THEMIS))


class ScheduleColumns(NamedTuple):
    """Result of the kernel: starts, ends and shapes of n jobs, and the power of the cluster.

    Attributes:
        start_s, end_s: times in seconds, NaN for a job that never ran, shape (n,).
        shape: row of the shape in which the job ran; -1: none, shape (n,).
        times, watts: power from each time on, shape (2 n + 2,), of which the first steps count.
    """

    start_s: Floats
    end_s: Floats
    shape: Ints
    times: Floats
    watts: Floats


class ShapeColumns(NamedTuple):
    """Power and real run times.

    Attributes:
        time_s, power_watts, extra_watts: real run time, power, and power above the idle power of the units,
            by shape.
        idle_watts: power of all nodes without jobs.
    """

    time_s: Floats
    power_watts: Floats
    extra_watts: Floats
    idle_watts: float


class SimulationColumns(NamedTuple):
    """State of the simulation that the kernels change.

    Attributes:
        free: free units by kind of nodes.
        pending, running, users, schedule: jobs, users and result.
        jobs_watts: power of running jobs above the idle power of their units, shape (1,).
    """

    free: Ints
    pending: PendingColumns
    running: RunningColumns
    users: UserColumns
    schedule: ScheduleColumns
    jobs_watts: Floats


def supports(jobs: Workload, kinds: Sequence[NodeKind], policy: Policy, settings: ScheduleSettings) -> bool:
    """Return whether this module can simulate these jobs with these nodes, policy and settings."""
    preempts = policy.preempts and settings.preemption is not None
    return (
        policy.built_in
        and policy.name in CODES
        and settings.discipline in (Discipline.STRICT, Discipline.EASY)
        and settings.horizon_s is None
        and settings.budget_watts is None
        and settings.idle_off_s is None
        and settings.power_saving is None
        and settings.options.aged_jobs_per_user is None
        and not is_constrained(jobs, kinds, settings)
        and not any(kind.failures_per_s for kind in kinds)
        and not (preempts and not np.all(np.isnan(jobs.deadline_s)))
    )


def simulate(
    jobs: Workload, kinds: Sequence[NodeKind], policy: Policy, settings: ScheduleSettings
) -> SimulationResult:
    """Simulate a workload for which `supports` returns True, and return the result."""
    total = np.array([kind.nodes * kind.units for kind in kinds], np.int64)
    unit_idle_watts = np.array([kind.unit_idle_watts for kind in kinds])
    scoring = rules(policy.name, settings.options)
    columns = job_columns(jobs, total, scoring)
    extra_watts = jobs.power_watts - unit_idle_watts[jobs.hardware] * jobs.units
    load = ShapeColumns(
        np.ascontiguousarray(jobs.time_s),
        np.ascontiguousarray(jobs.power_watts),
        (extra_watts - jobs.power_watts) + jobs.power_watts,
        float(sum(kind.nodes * kind.idle_watts for kind in kinds)),
    )
    schedule = _empty_schedule(jobs.count)
    state = SimulationColumns(
        total.copy(),
        no_jobs(columns, scoring, total),
        no_running_jobs(int(min(jobs.count, int(np.sum(total))))),
        no_usage(_shares(scoring, jobs, settings), settings.half_life_s),
        schedule,
        np.zeros(1),
    )
    runnable = columns.fastest >= 0
    easy = settings.discipline == Discipline.EASY
    steps, passes, end_s = _run(columns, load, scoring, runnable, state, easy, settings.interval_s)
    ordered = _in_rows(schedule, columns.row)
    return _result(jobs, ordered, runnable[columns.arrival], int(np.sum(total)), steps, passes, end_s)


def _empty_schedule(count: int) -> ScheduleColumns:
    never = np.full(count, -1, np.int64)
    times, watts = np.empty(2 * count + 2), np.empty(2 * count + 2)
    return ScheduleColumns(np.full(count, np.nan), np.full(count, np.nan), never, times, watts)


def _shares(scoring: PolicyRules, jobs: Workload, settings: ScheduleSettings) -> Floats:
    if scoring.code not in _USAGE_POLICIES:
        return np.zeros(0)
    share = np.array([settings.shares.get(name, 1.0) for name in jobs.users])
    whole = np.mean(share) if scoring.code in (HADES, THEMIS) else np.sum(share)
    scaled: Floats = share / whole
    return scaled


def _in_rows(schedule: ScheduleColumns, row: Ints) -> ScheduleColumns:
    """Return a schedule with the jobs in the order of the workload."""
    start_s, end_s, shape = (
        np.empty_like(schedule.start_s),
        np.empty_like(schedule.end_s),
        np.empty_like(schedule.shape),
    )
    start_s[row], end_s[row], shape[row] = schedule.start_s, schedule.end_s, schedule.shape
    return ScheduleColumns(start_s, end_s, shape, schedule.times, schedule.watts)


def _result(
    jobs: Workload,
    schedule: ScheduleColumns,
    runnable: Bools,
    units: int,
    steps: int,
    passes: int,
    end_s: float,
) -> SimulationResult:
    ran = schedule.shape >= 0
    shapes = np.where(ran, schedule.shape, 0)
    run_s = np.where(ran, schedule.end_s - schedule.start_s, 0.0)
    never, none = np.broadcast_to(np.int64(0), jobs.count), np.broadcast_to(0.0, jobs.count)
    outcomes = [np.int8(JobOutcome.COMPLETED), np.int8(JobOutcome.PENDING)]
    accounts = EnergyAccounts(
        shape=schedule.shape,
        start_s=schedule.start_s,
        end_s=schedule.end_s,
        energy_joules=run_s * jobs.power_watts[shapes] if jobs.count else run_s,
        lost_joules=none,
        preemptions=never,
        failures=never,
        run_s=run_s,
        unit_s=run_s * jobs.units[shapes].astype(np.float64) if jobs.count else run_s,
        outcome=np.select([ran, runnable], outcomes, np.int8(JobOutcome.UNRUNNABLE)),
    )
    times, watts = np.append(schedule.times[:steps], end_s), schedule.watts[:steps]
    lengths = np.diff(times)
    energy = math.fsum(watts * lengths)
    unrunnable = jobs.count - int(np.sum(runnable))
    return SimulationResult(
        workload=jobs,
        accounts=accounts,
        end_s=end_s,
        energy_joules=energy,
        idle_joules=energy - math.fsum(accounts.energy_joules),
        power=(times, np.append(watts, watts[-1])),
        peak_watts=float(np.max(watts[lengths > 0], initial=0.0)),
        passes=passes,
        units=units,
        notes=[f"{unrunnable} jobs are larger than the cluster and never ran"] if unrunnable else [],
    )


@compiled
def _run(
    jobs: JobColumns,
    load: ShapeColumns,
    policy: PolicyRules,
    runnable: Bools,
    state: SimulationColumns,
    easy: bool,
    interval_s: float,
) -> tuple[int, int, float]:
    """Simulate all jobs.

    Returns:
        Number of steps of the power, number of scheduling passes, and the time of the last event in seconds.
    """
    count, schedule = len(jobs.row), state.schedule
    now_s, pass_due_s = 0.0, np.inf
    arrived, passes, steps = 0, 0, 1
    schedule.times[0], schedule.watts[0] = 0.0, load.idle_watts
    while state.running.tally[0] > 0 or arrived < count or state.pending.tally[0] > 0:
        arrival_s = jobs.submit_s[jobs.arrival[arrived]] if arrived < count else np.inf
        next_s = min(next_end_s(state.running), arrival_s, pass_due_s)
        if next_s == np.inf:
            break
        now_s = next_s
        changed = _end_jobs(jobs, load, state, now_s)
        while arrived < count and jobs.submit_s[jobs.arrival[arrived]] == now_s:
            job = jobs.arrival[arrived]
            if runnable[job]:
                enter(state.pending, jobs, job)
                changed = True
            arrived += 1
        if changed:
            due_s = math.ceil(now_s / interval_s) * interval_s if interval_s > 0 else now_s
            pass_due_s = min(pass_due_s, due_s)
        if pass_due_s == now_s:
            pass_due_s = np.inf
            if state.pending.tally[0] > 0:
                passes += 1
                _pass(jobs, load, policy, state, easy, now_s)
        if state.running.tally[0] == 0:
            state.jobs_watts[0] = 0.0  # floats would drift
        power = load.idle_watts + state.jobs_watts[0]
        if next_end_s(state.running) != now_s and power != schedule.watts[steps - 1]:
            if schedule.times[steps - 1] == now_s:
                schedule.watts[steps - 1] = power
            else:
                schedule.times[steps], schedule.watts[steps] = now_s, power
                steps += 1
    return steps, passes, now_s


@compiled
def _end_jobs(jobs: JobColumns, load: ShapeColumns, state: SimulationColumns, now_s: float) -> bool:
    """End the jobs whose end is now, and return whether there were any."""
    ended = False
    while next_end_s(state.running) == now_s:
        job = pop(state.running)
        shape = state.schedule.shape[job]
        state.schedule.end_s[job] = now_s
        state.free[jobs.hardware[shape]] += jobs.units[shape]
        state.jobs_watts[0] -= load.extra_watts[shape]
        settle(state.users, now_s)
        hold(state.users, jobs.user[job], -jobs.units[shape], -load.power_watts[shape])
        ended = True
    return ended


@compiled
def _pass(
    jobs: JobColumns,
    load: ShapeColumns,
    policy: PolicyRules,
    state: SimulationColumns,
    easy: bool,
    now_s: float,
) -> None:
    """Start the pending jobs that may start now. At least one job is pending."""
    settle(state.users, now_s)
    if not may_fit(state.pending, state.free):
        return
    users = state.users
    least_usage = 0.0
    if len(users.share) > 0:
        least_usage = user_factors(policy, users.unit_s, users.joules, users.share, users.factor)
    now = moment(policy, jobs, state.pending, now_s, users.factor, least_usage)
    held, blocked = HeadReservation(-1, np.inf, 0), False
    while may_fit(state.pending, state.free):
        if blocked:
            job, shape = backfill_job(policy, jobs, state.pending, now, state.free, held)
        else:
            job, shape = first_job(policy, jobs, state.pending, now, state.free, held)
        if job < 0:
            return
        if jobs.units[shape] > state.free[jobs.hardware[shape]]:
            if not easy:
                return
            running = state.running
            blocked = True
            held = reserve(
                running.expected_s,
                running.expected_shape,
                running.tally[0],
                jobs,
                shape,
                state.free,
                now_s,
            )
            continue
        held = _start(jobs, load, state, now, job, shape, held)


@compiled
def _start(
    jobs: JobColumns,
    load: ShapeColumns,
    state: SimulationColumns,
    now: Moment,
    job: int,
    shape: int,
    held: HeadReservation,
) -> HeadReservation:
    """Start a job, and return what remains of the reservation."""
    kind, need = jobs.hardware[shape], jobs.units[shape]
    expected_s = now.now_s + limit_s(jobs, job, shape)
    leave(state.pending, jobs, job)
    state.free[kind] -= need
    state.schedule.start_s[job], state.schedule.shape[job] = now.now_s, shape
    push(state.running, now.now_s + load.time_s[shape], expected_s, job, shape)
    state.jobs_watts[0] += load.extra_watts[shape]
    hold(state.users, jobs.user[job], need, load.power_watts[shape])
    if kind == held.kind and expected_s > held.start_s:
        return HeadReservation(held.kind, held.start_s, held.spare - need)
    return held
