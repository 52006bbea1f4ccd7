"""State of the fast (column) engine of the simulator.

The module also contains the compiled functions that start, end and interrupt jobs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.kernels.compiled import compiled
from slurm_energy.simulator.kernels.pending_tree import PendingJobs, enter, leave
from slurm_energy.simulator.kernels.score_kernels import expected_s
from slurm_energy.simulator.kernels.start_plan import StartPlan
from slurm_energy.simulator.results.simulation_result import JobOutcome
from slurm_energy.simulator.results.user_columns import UserColumns, hold, settle
from slurm_energy.simulator.running_columns import RunningColumns, pop, push, withdraw
from slurm_energy.simulator.running_jobs import ROUNDING_S
from slurm_energy.simulator.workloads.job_columns import (
    EXTRA_WATTS,
    KILL_S,
    KIND,
    LEFT,
    RESTART_S,
    RUN_TIME_S,
    RUN_WATTS,
    UNITS,
    USER,
    JobColumns,
    PolicyRules,
    refresh,
)

START_S, END_S, ENERGY, LOST, RUN_S, UNIT_S, BEGIN_S, STOP_S = range(8)
"""Columns of `Accounts.real`: as in `EnergyAccounts`; BEGIN_S and STOP_S are start and end of
the current run."""
SHAPE, PREEMPTIONS, OUTCOME = range(3)
"""Columns of `Accounts.whole`, as in `EnergyAccounts`."""
_PENDING, _RUNNING, _COMPLETED, _TIMEOUT = (
    int(outcome)
    for outcome in (JobOutcome.PENDING, JobOutcome.RUNNING, JobOutcome.COMPLETED, JobOutcome.TIMEOUT)
)


class Accounts(NamedTuple):
    """Times and energies of n simulated jobs, as real and integer columns.

    Attributes:
        real: the columns of real numbers, shape (n, 8).
        whole: the columns of integers, shape (n, 3).
    """

    real: Floats
    whole: Ints


class SimulationColumns(NamedTuple):
    """State of the simulation that the compiled functions modify.

    Units are what jobs allocate on a node: GPUs, cores or whole nodes. A pass is one run of the simulated
    scheduler.

    Attributes:
        free: free units by kind of nodes.
        offered: units that are free at the start of a pass. Under the discipline packing, the chosen
            shape (way to run a job) must fit in these units.
        pending, running, users, accounts: pending jobs, running jobs, usage of users, and times and
            energies of jobs.
        plan: planned starts, for the policy `metis`.
        jobs_watts: power of running jobs above the idle power of their units, shape (1,).
        pass_due_s: time in seconds of the next scheduling pass, shape (1,). Infinity if no pass is due.
        last_s: two times in seconds, shape (2,): the time of the last events, and the time of the latest
            event without effect.
        progress: four counts, shape (4,): arrived jobs, deadlines that have begun to be at risk,
            scheduling passes, and changes of the cluster's power.
    """

    free: Ints
    offered: Ints
    pending: PendingJobs
    running: RunningColumns
    users: UserColumns
    accounts: Accounts
    plan: StartPlan
    jobs_watts: Floats
    pass_due_s: Floats
    last_s: Floats
    progress: Ints


def empty_accounts(count: int) -> Accounts:
    """Return the accounts (times, energies and outcomes) of `count` jobs that have not run."""
    real, whole = np.zeros((count, 8)), np.zeros((count, 3), np.int64)
    real[:, [START_S, END_S]], whole[:, SHAPE], whole[:, OUTCOME] = np.nan, -1, _PENDING
    return Accounts(real, whole)


@compiled
def request_pass(policy: PolicyRules, state: SimulationColumns, now_s: float) -> None:
    """Request that the simulated scheduler examines the queue again (a scheduling pass).

    The pass takes place at the next multiple of the interval. If a pass is already due earlier, nothing
    changes.
    """
    interval_s = policy.interval_s
    due_s = np.ceil(now_s / interval_s) * interval_s if interval_s > 0 else now_s
    state.pass_due_s[0] = min(state.pass_due_s[0], due_s)


@compiled
def start_job(
    policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now_s: float, job: int, shape: int
) -> None:
    """Start a pending job in a shape (way to run the job) whose units, such as GPUs, are free."""
    real, whole = state.accounts.real, state.accounts.whole
    leave(policy, state.pending, jobs, job)
    state.free[jobs.need[shape, KIND]] -= jobs.need[shape, UNITS]
    if np.isnan(real[job, START_S]):
        real[job, START_S] = now_s
    real[job, BEGIN_S] = now_s
    whole[job, SHAPE], whole[job, OUTCOME] = shape, _RUNNING
    end_s = min(_work_done_s(jobs, state, job), now_s + jobs.real[job, KILL_S])
    real[job, STOP_S] = end_s
    push(state.running, end_s, now_s + expected_s(jobs, job, shape), job, shape)
    state.jobs_watts[0] += jobs.load[shape, EXTRA_WATTS]
    settle(state.users, now_s)
    hold(state.users, jobs.whole[job, USER], jobs.need[shape, UNITS], jobs.load[shape, RUN_WATTS])


@compiled
def end_job(jobs: JobColumns, state: SimulationColumns, now_s: float) -> None:
    """End the running job that ends first, at the current time.

    The job is done, or is killed at its time limit.
    """
    job = pop(state.running)
    stop(jobs, state, now_s, job)
    killed = _work_done_s(jobs, state, job) > now_s + ROUNDING_S
    state.accounts.real[job, END_S] = now_s
    state.accounts.whole[job, OUTCOME] = _TIMEOUT if killed else _COMPLETED


@compiled
def _work_done_s(jobs: JobColumns, state: SimulationColumns, job: int) -> float:
    """Return the time in seconds at which a running job completes its work if nothing interrupts it.

    The time limit of the job is not taken into account.
    """
    begin_s, shape = state.accounts.real[job, BEGIN_S], state.accounts.whole[job, SHAPE]
    work_s = jobs.real[job, LEFT] * jobs.load[shape, RUN_TIME_S]
    return float(begin_s + jobs.real[job, RESTART_S] + work_s)


@compiled
def interrupt_job(
    policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now_s: float, job: int
) -> None:
    """Interrupt a running simulated job so that another job can run.

    The work of the interrupted job up to its last checkpoint is kept.
    """
    lost_joules, saved = loss(policy, jobs, state, now_s, job)
    state.last_s[1] = max(state.last_s[1], state.accounts.real[job, STOP_S])
    withdraw(state.running, job)
    stop(jobs, state, now_s, job)
    state.accounts.real[job, LOST] += lost_joules
    state.accounts.whole[job, OUTCOME] = _PENDING
    state.accounts.whole[job, PREEMPTIONS] += 1
    jobs.real[job, LEFT] -= saved
    jobs.real[job, RESTART_S] = policy.restart_s
    refresh(policy, jobs, job)
    enter(policy, state.pending, jobs, job)
    request_pass(policy, state, now_s)


@compiled
def stop(jobs: JobColumns, state: SimulationColumns, now_s: float, job: int) -> None:
    """Stop a running job at `now_s`. Free its units (such as GPUs), and account for its run."""
    real, shape = state.accounts.real, state.accounts.whole[job, SHAPE]
    units, run_s = jobs.need[shape, UNITS], now_s - real[job, BEGIN_S]
    state.free[jobs.need[shape, KIND]] += units
    state.jobs_watts[0] -= jobs.load[shape, EXTRA_WATTS]
    settle(state.users, now_s)
    hold(state.users, jobs.whole[job, USER], -units, -jobs.load[shape, RUN_WATTS])
    real[job, ENERGY] += run_s * jobs.load[shape, RUN_WATTS]
    real[job, RUN_S] += run_s
    real[job, UNIT_S] += run_s * units


@compiled
def loss(
    policy: PolicyRules, jobs: JobColumns, state: SimulationColumns, now_s: float, job: int
) -> tuple[float, float]:
    """Return the loss that the interruption of a running job would cause.

    The result is a pair: the wasted joules, and the fraction of the job's work that is kept. Both values are
    computed as in `RunningJobs.loss`.
    """
    real, shape = state.accounts.real, state.accounts.whole[job, SHAPE]
    worked_s = now_s - real[job, BEGIN_S]
    useful_s = max(0.0, worked_s - jobs.real[job, RESTART_S])
    saved_s = useful_s
    if policy.checkpoint_s > 0:
        saved_s = 0.0
        if not np.isinf(policy.checkpoint_s):
            saved_s = policy.checkpoint_s * (useful_s // policy.checkpoint_s)
    watts = jobs.load[shape, RUN_WATTS]
    kept_s = min(useful_s, saved_s)
    lost_joules = (worked_s - useful_s) * watts
    lost_joules += (useful_s - kept_s) * watts
    return lost_joules, kept_s / jobs.load[shape, RUN_TIME_S]
