"""Fast simulation of the built-in scheduling policies in compiled code.

This engine has no budget, no power states of nodes and no node failures. It covers all built-in policies and
disciplines, jobs with one or several possible shapes (choices of resources) on several kinds of nodes,
preemption and a horizon. The resulting schedule is exactly that of the general engine; tests compare the two
schedules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.scheduling.rankings.metis import effort
from slurm_energy.scheduling.registry import Policy
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine_columns import (
    END_S,
    ENERGY,
    LOST,
    OUTCOME,
    PREEMPTIONS,
    RUN_S,
    SHAPE,
    START_S,
    UNIT_S,
    Accounts,
    SimulationColumns,
    empty_accounts,
    end_job,
    request_pass,
    stop,
)
from slurm_energy.simulator.engine_support import needs_general_engine
from slurm_energy.simulator.kernels.compiled import compiled, compiled_entry, is_cached
from slurm_energy.simulator.kernels.pass_kernels import run_pass
from slurm_energy.simulator.kernels.pending_tree import enter, no_jobs
from slurm_energy.simulator.kernels.preemption_kernels import preempt_for_deadlines
from slurm_energy.simulator.kernels.start_plan import no_plan
from slurm_energy.simulator.results.run_notes import run_notes
from slurm_energy.simulator.results.simulation_result import EnergyAccounts, JobOutcome, SimulationResult
from slurm_energy.simulator.results.user_columns import no_usage
from slurm_energy.simulator.running_columns import next_end_s, no_running_jobs
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.job_columns import (
    BLEND,
    CODES,
    HADES,
    KEY,
    METIS,
    RISK_S,
    ROW,
    SUBMIT_S,
    THEMIS,
    USAGE_POLICIES,
    JobColumns,
    PolicyRules,
    job_columns,
    rules,
    runnable,
)
from slurm_energy.simulator.workloads.workload import Workload

_UNRUNNABLE = int(JobOutcome.UNRUNNABLE)
_ARRIVED, _AT_RISK, _PASSES, _STEPS = range(4)
"""Columns of `SimulationColumns.progress`."""


_COMPILED_FROM_JOBS, _CACHED_FROM_JOBS = 20_000, 1000
"""With fewer jobs the general engine is faster than compilation, or than loading the machine code."""


def pays(jobs: int) -> bool:
    """Return whether the compiled engine of this module is the faster one for a number of jobs.

    The alternative is the general engine of the simulator. The functions of this module are compiled once
    per installation. The compilation takes as long as the general engine takes for 20,000 jobs.
    """
    return jobs >= (_CACHED_FROM_JOBS if is_cached(_run) else _COMPILED_FROM_JOBS)


def supports(jobs: Workload, kinds: Sequence[NodeKind], policy: Policy, settings: ScheduleSettings) -> bool:
    """Return whether the fast column engine can simulate this workload.

    The result depends on the jobs, the kinds of nodes, the policy and the settings.
    """
    options = settings.options
    return (
        policy.built_in
        and policy.name in CODES
        and not (settings.signals is not None and policy.preempts and settings.preemption is not None)
        and not needs_general_engine(jobs, kinds, settings)
        and options.aged_jobs_per_user is None
        and options.age_weight >= 0
        and all(weight >= 0 for weight in options.weights.values())
    )


def simulate(
    jobs: Workload, kinds: Sequence[NodeKind], policy: Policy, settings: ScheduleSettings
) -> SimulationResult:
    """Simulate a workload for which `supports` returns True, and return the result."""
    total = np.array([kind.nodes * kind.units for kind in kinds], np.int64)
    unit_idle_watts = np.array([kind.unit_idle_watts for kind in kinds])
    scoring = rules(policy, settings)
    margin_s = settings.preemption.margin_s if settings.preemption else 0.0
    columns = job_columns(jobs, total, unit_idle_watts, scoring, margin_s, kills=settings.kill_at_limit)
    state = SimulationColumns(
        total.copy(),
        np.zeros_like(total),
        no_jobs(scoring, columns, total),
        no_running_jobs(int(min(jobs.count, int(np.sum(total))))),
        no_usage(_shares(scoring, jobs, settings), settings.half_life_s),
        empty_accounts(jobs.count),
        no_plan(scoring, columns, _effort(jobs, unit_idle_watts, scoring), total),
        np.zeros(1),
        np.full(1, np.inf),
        np.zeros(2),
        np.zeros(4, np.int64),
    )
    idle_watts = float(sum(kind.nodes * kind.idle_watts for kind in kinds))
    key_order = np.sort(columns.real[:, KEY]) if scoring.code == BLEND else np.zeros(0)
    times, watts = np.empty(2 * jobs.count + 4), np.empty(2 * jobs.count + 4)
    times[0], watts[0], state.progress[_STEPS] = 0.0, idle_watts, 1
    is_runnable = runnable(columns)
    risks_s = _risks_s(columns, scoring, is_runnable)
    while not _run(columns, scoring, idle_watts, key_order, risks_s, is_runnable, times, watts, state):
        times, watts = np.resize(times, 2 * len(times)), np.resize(watts, 2 * len(watts))
    steps, passes, end_s = state.progress[_STEPS], int(state.progress[_PASSES]), float(state.last_s[0])
    power = times[:steps].copy(), watts[:steps].copy()
    return _result(
        jobs, _accounts(state.accounts, columns), power, int(np.sum(total)), passes, end_s, settings.horizon_s
    )


def _shares(scoring: PolicyRules, jobs: Workload, settings: ScheduleSettings) -> Floats:
    if scoring.code not in USAGE_POLICIES:
        return np.zeros(0)
    share = np.array([settings.shares.get(name, 1.0) for name in jobs.users])
    whole = np.mean(share) if scoring.code in (HADES, THEMIS) else np.sum(share)
    scaled: Floats = share / whole
    return scaled


def _effort(jobs: Workload, unit_idle_watts: Floats, scoring: PolicyRules) -> Floats:
    """Return the cost factor by which the policy `metis` weights the time of each of the m shapes.

    A shape is a set of resources on which a job may run. The result has shape (m,). It is empty for other
    policies.
    """
    if scoring.code != METIS:
        return np.zeros(0)
    idle_watts = unit_idle_watts[jobs.hardware] * jobs.units
    return effort(jobs.predicted_watts, jobs.predicted_time_s, idle_watts, float(scoring.weights[0]))


def _risks_s(jobs: JobColumns, scoring: PolicyRules, is_runnable: Bools) -> Floats:
    """Return, in ascending order, the times from which on jobs risk missing their deadlines.

    Jobs that the cluster cannot run are left out. The result is empty for policies that do not preempt other
    jobs.
    """
    if not scoring.preempts:
        return np.zeros(0)
    risk_s = jobs.real[is_runnable, RISK_S]
    return np.sort(risk_s[np.isfinite(risk_s)])


def _accounts(accounts: Accounts, jobs: JobColumns) -> EnergyAccounts:
    """Return start, end, energy and further results of each job of a simulation.

    The engine may keep the jobs in another order. The results are in the order of the jobs in the workload.
    """
    real, whole = np.empty_like(accounts.real), np.empty_like(accounts.whole)
    real[jobs.whole[:, ROW]], whole[jobs.whole[:, ROW]] = accounts.real, accounts.whole
    return EnergyAccounts(
        shape=whole[:, SHAPE],
        start_s=real[:, START_S],
        end_s=real[:, END_S],
        energy_joules=real[:, ENERGY],
        lost_joules=real[:, LOST],
        preemptions=whole[:, PREEMPTIONS],
        failures=np.broadcast_to(np.int64(0), len(real)),
        run_s=real[:, RUN_S],
        unit_s=real[:, UNIT_S],
        outcome=whole[:, OUTCOME].astype(np.int8),
    )


def _result(
    jobs: Workload,
    accounts: EnergyAccounts,
    power: tuple[Floats, Floats],
    units: int,
    passes: int,
    end_s: float,
    horizon_s: float | None,
) -> SimulationResult:
    times, watts = np.append(power[0], end_s), power[1]
    lengths = np.diff(times)
    energy = math.fsum(watts * lengths)
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
        notes=run_notes(accounts, horizon_s),
    )


@compiled_entry()
def _run(
    jobs: JobColumns,
    policy: PolicyRules,
    idle_watts: float,
    key_order: Floats,
    risks_s: Floats,
    is_runnable: Bools,
    times: Floats,
    watts: Floats,
    state: SimulationColumns,
) -> bool:
    """Simulate until all jobs are done, or until the array `times` is full.

    Return True if all jobs are done. Otherwise a later call continues from `state`.

    A shape is a number and kind of GPUs (or nodes) with which a job can run.

    Args:
        jobs: columns of all jobs and their shapes.
        policy: parameters of the scheduling policy.
        idle_watts: power of all nodes without jobs.
        key_order: values of KEY of all jobs, ascending; used by `blend`.
        risks_s: times from which deadlines are at risk, ascending.
        is_runnable: whether the cluster has enough GPUs or nodes for one of the job's shapes, shape (n,).
        times: array to which the time of each step of the cluster's power is written. The caller fills in
            the first step.
        watts: array to which the power in watts from each time in `times` on is written.
        state: the state of the simulation, from which a later call continues.
    """
    pending, running, progress = state.pending.tally, state.running.tally, state.progress
    while running[0] > 0 or progress[_ARRIVED] < len(jobs.arrival) or pending[0] > 0:
        now_s = _next_s(jobs, risks_s, state)
        if now_s == np.inf or now_s > policy.horizon_s:
            if policy.horizon_s == np.inf:
                state.last_s[0] = max(state.last_s[0], state.last_s[1])
            break
        _process_events(jobs, policy, is_runnable, state, now_s)
        state.last_s[0] = now_s
        if state.pass_due_s[0] == now_s:
            state.pass_due_s[0] = np.inf
            if pending[0] > 0:
                progress[_PASSES] += 1
                if policy.preempts:
                    preempt_for_deadlines(policy, jobs, state, now_s)
                run_pass(policy, jobs, key_order, state, now_s)
        if next_end_s(state.running) == now_s or state.pass_due_s[0] == now_s:
            continue
        if running[0] == 0:
            state.jobs_watts[0] = 0.0  # floats would drift
        _record(progress, times, watts, now_s, idle_watts + state.jobs_watts[0])
        if progress[_STEPS] == len(times):
            return False
    if policy.horizon_s < np.inf:
        state.last_s[0] = policy.horizon_s
        while running[0] > 0:
            running[0] -= 1
            stop(jobs, state, policy.horizon_s, state.running.job[running[0]])
    return True


@compiled
def _next_s(jobs: JobColumns, risks_s: Floats, state: SimulationColumns) -> float:
    """Return the time of the next event in seconds; infinity if there is no further event."""
    progress, next_s = state.progress, min(next_end_s(state.running), state.pass_due_s[0])
    if progress[_ARRIVED] < len(jobs.arrival):
        next_s = min(next_s, jobs.real[jobs.arrival[progress[_ARRIVED]], SUBMIT_S])
    if state.pending.tally[1] > 0:
        while progress[_AT_RISK] < len(risks_s) and risks_s[progress[_AT_RISK]] <= state.last_s[0]:
            progress[_AT_RISK] += 1
        if progress[_AT_RISK] < len(risks_s):
            next_s = min(next_s, risks_s[progress[_AT_RISK]])
    return float(next_s)


@compiled
def _record(progress: Ints, times: Floats, watts: Floats, now_s: float, power_watts: float) -> None:
    """Record that the cluster draws `power_watts` from now on."""
    step = progress[_STEPS]
    if power_watts == watts[step - 1]:
        return
    if times[step - 1] == now_s:
        watts[step - 1] = power_watts
        return
    times[step], watts[step] = now_s, power_watts
    progress[_STEPS] += 1


@compiled
def _process_events(
    jobs: JobColumns, policy: PolicyRules, is_runnable: Bools, state: SimulationColumns, now_s: float
) -> None:
    """Process all events of the simulation that happen at the current time.

    The events are ends of jobs, arrivals of jobs, and times at which a deadline becomes at risk.
    """
    while next_end_s(state.running) == now_s:
        end_job(jobs, state, now_s)
        request_pass(policy, state, now_s)
    for index in range(state.pending.tally[1]):
        if jobs.real[state.pending.urgent[index], RISK_S] == now_s:
            request_pass(policy, state, now_s)
    progress = state.progress
    while progress[_ARRIVED] < len(jobs.arrival):
        job = jobs.arrival[progress[_ARRIVED]]
        if jobs.real[job, SUBMIT_S] != now_s:
            return
        progress[_ARRIVED] += 1
        if is_runnable[job]:
            enter(policy, state.pending, jobs, job)
            request_pass(policy, state, now_s)
            if policy.preempts and jobs.real[job, RISK_S] < np.inf:
                state.last_s[1] = max(state.last_s[1], jobs.real[job, RISK_S])
        else:
            state.accounts.whole[job, OUTCOME] = _UNRUNNABLE
