"""Compiled simulation of the most common kind of workload, for millions of jobs per second.

This fast path covers rigid jobs (jobs with only one possible number of GPUs) on equal nodes. The jobs start
in order of submission, without backfill (strict) or with EASY backfill. The resulting schedule is exactly
that of the general simulation engine; tests compare the two schedules.

A scheduling pass may examine all pending jobs. On an overloaded cluster, the run time would grow with the
square of the number of jobs. Another engine, the column engine, therefore simulates workloads that overload
the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.scheduling.registry import Policy, policy
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine_support import needs_general_engine
from slurm_energy.simulator.kernels import column_engine
from slurm_energy.simulator.kernels.compiled import compiled, compiled_entry
from slurm_energy.simulator.results.simulation_result import EnergyAccounts, JobOutcome, SimulationResult
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload

_MAX_STEPS: Final = 1_000_000_000
_MAX_STEPS_PER_JOB: Final = 1000
"""The passes may together examine the larger of these two numbers of pending jobs: a few seconds."""


def supports(jobs: Workload, kinds: Sequence[NodeKind], chosen: Policy, settings: ScheduleSettings) -> bool:
    """Return whether this module can simulate these jobs with these nodes, policy and settings."""
    plain = (
        chosen.name == "fcfs"
        and settings.discipline in (Discipline.STRICT, Discipline.EASY)
        and settings.interval_s == 0
        and settings.horizon_s is None
        and not needs_general_engine(jobs, kinds, settings)
    )
    rigid = len(jobs.first) == jobs.count + 1 == int(jobs.first[-1]) + 1
    kills = settings.kill_at_limit and bool(np.any(jobs.time_s > jobs.time_limit_s))
    return plain and rigid and len(kinds) == 1 and not kills


def simulate(jobs: Workload, kinds: Sequence[NodeKind], settings: ScheduleSettings) -> SimulationResult:
    """Simulate a workload for which `supports` returns True, and return the result."""
    kind = kinds[0]
    limit_s = np.where(np.isnan(jobs.time_limit_s), jobs.predicted_time_s, jobs.time_limit_s)
    total = kind.nodes * kind.units
    runnable = jobs.units <= total
    start_s = np.full(jobs.count, np.nan)
    # Numba would compile the function once more for columns with gaps between their values.
    passes = _schedule(
        np.ascontiguousarray(jobs.submit_s),
        np.ascontiguousarray(jobs.units),
        np.ascontiguousarray(jobs.time_s),
        np.ascontiguousarray(limit_s),
        runnable,
        total,
        settings.discipline == Discipline.EASY,
        max(_MAX_STEPS, _MAX_STEPS_PER_JOB * jobs.count),
        start_s,
    )
    if passes < 0:
        return column_engine.simulate(jobs, kinds, policy("fcfs"), settings)
    return _outcome(jobs, kind, start_s, runnable, int(passes))


def _outcome(
    jobs: Workload, kind: NodeKind, start_s: Floats, runnable: Bools, passes: int
) -> SimulationResult:
    """Return the result of the fast simulation for the computed start times of the jobs.

    The result shares columns with the workload, to save memory with millions of jobs.
    """
    count, ran = jobs.count, bool(np.all(runnable))
    time_s = jobs.time_s if ran else np.where(runnable, jobs.time_s, 0.0)
    none, never = np.broadcast_to(0.0, count), np.broadcast_to(np.int64(0), count)
    accounts = EnergyAccounts(
        shape=jobs.first[:-1] if ran else np.where(runnable, jobs.first[:-1], -1),
        start_s=start_s,
        end_s=start_s + jobs.time_s,
        energy_joules=time_s * jobs.power_watts,
        lost_joules=none,
        preemptions=never,
        failures=never,
        run_s=time_s,
        unit_s=time_s * jobs.units,
        outcome=np.where(runnable, np.int8(JobOutcome.COMPLETED), np.int8(JobOutcome.UNRUNNABLE)),
    )
    end_s = float(np.nanmax(accounts.end_s, initial=np.max(jobs.submit_s, initial=0.0)))
    idle_watts = kind.nodes * kind.idle_watts
    times, watts = _power(accounts, jobs.power_watts, jobs.units, kind.unit_idle_watts, idle_watts, end_s)
    extra_joules = float(np.sum(accounts.energy_joules)) - kind.unit_idle_watts * float(
        np.sum(accounts.unit_s)
    )
    energy = idle_watts * end_s + extra_joules
    unrunnable = count - int(np.sum(runnable))
    return SimulationResult(
        workload=jobs,
        accounts=accounts,
        end_s=end_s,
        energy_joules=energy,
        idle_joules=energy - float(np.sum(accounts.energy_joules)),
        power=(times, watts),
        peak_watts=float(np.max(watts)) if end_s > 0 else 0.0,
        passes=passes,
        units=kind.nodes * kind.units,
        notes=[f"{unrunnable} jobs are larger than the cluster and never ran"] if unrunnable else [],
    )


def _power(
    accounts: EnergyAccounts,
    watts: Floats,
    units: Ints,
    unit_idle_watts: float,
    idle_watts: float,
    last_s: float,
) -> tuple[Floats, Floats]:
    """Return the cluster's power over time in the format of `EnergyIntegral.series`."""
    ran = int(np.sum(~np.isnan(accounts.start_s)))
    starts = np.argsort(accounts.start_s)[:ran]  # NaN comes last
    ends = np.argsort(accounts.end_s)[:ran]
    times, powers = np.empty(2 * ran + 2), np.empty(2 * ran + 2)
    size = _merge(
        accounts.start_s,
        accounts.end_s,
        starts,
        ends,
        watts,
        units,
        unit_idle_watts,
        idle_watts,
        times,
        powers,
    )
    times[size], powers[size] = last_s, powers[size - 1]
    return times[: size + 1], powers[: size + 1]


@compiled_entry()
def _merge(
    start_s: Floats,
    end_s: Floats,
    starts: Ints,
    ends: Ints,
    watts: Floats,
    units: Ints,
    unit_idle_watts: float,
    idle_watts: float,
    times: Floats,
    powers: Floats,
) -> int:
    """Compute the cluster's power over time from the starts and ends of all jobs.

    The result is a sequence of steps, ordered by time. The arrays `times` and `powers` receive the time and
    the watts of each step. Return the number of steps.
    """
    times[0], powers[0] = 0.0, idle_watts
    size, power = 1, idle_watts
    begun, ended = 0, 0
    while ended < len(ends):
        if begun < len(starts) and start_s[starts[begun]] < end_s[ends[ended]]:
            job = starts[begun]
            now, change = start_s[job], watts[job] - unit_idle_watts * units[job]
            begun += 1
        else:
            job = ends[ended]
            now, change = end_s[job], unit_idle_watts * units[job] - watts[job]
            ended += 1
        power = idle_watts if begun == ended else power + change
        if now == times[size - 1]:
            powers[size - 1] = power
        elif power != powers[size - 1]:
            times[size], powers[size] = now, power
            size += 1
    return size


@compiled_entry(counts_references=True)
def _schedule(
    submit_s: Floats,
    units: Ints,
    time_s: Floats,
    limit_s: Floats,
    runnable: Bools,
    total: int,
    easy: bool,
    max_steps: int,
    start_s: Floats,
) -> int:
    """Compute the start times of all jobs of a simulation, and store them in `start_s`.

    Return the number of scheduling passes. Return -1 if the passes examine more than `max_steps` jobs in
    total.

    Pending jobs are kept in a linked list in order of submission. The ends of running jobs are kept in a
    heap, and their expected ends in a sorted array.
    """
    count = len(submit_s)
    following = np.full(count + 1, -1, np.int64)  # next job in the list; the head is at [count]
    tail = count
    heap_s = np.empty(total + 1, np.float64)
    heap_job = np.empty(total + 1, np.int64)
    heap_size = 0
    expected_s = np.empty(total + 1, np.float64)
    expected_job = np.empty(total + 1, np.int64)
    running = 0
    free, arrived, passes, steps = total, 0, 0, 0
    while arrived < count or heap_size > 0:
        now = heap_s[0] if heap_size > 0 else np.inf
        if arrived < count and submit_s[arrived] < now:
            now = submit_s[arrived]
        while heap_size > 0 and heap_s[0] == now:
            job = heap_job[0]
            heap_size = _pop(heap_s, heap_job, heap_size)
            running = _remove(expected_s, expected_job, running, job)
            free += units[job]
        while arrived < count and submit_s[arrived] == now:
            if runnable[arrived]:
                following[tail] = arrived
                tail = arrived
            arrived += 1
        if following[count] < 0:
            continue
        passes += 1
        shadow, extra = np.inf, 0
        blocked = False
        before, job = count, following[count]
        if steps > max_steps:
            return -1
        while job >= 0 and free > 0:
            steps += 1
            fits = units[job] <= free
            if blocked and fits and now + limit_s[job] > shadow:
                fits = units[job] <= extra
                if fits:
                    extra -= units[job]
            if fits:
                start_s[job] = now
                free -= units[job]
                heap_size = _push(heap_s, heap_job, heap_size, now + time_s[job], job)
                running = _insert(expected_s, expected_job, running, now + limit_s[job], job)
                following[before] = following[job]
                if tail == job:
                    tail = before
                job = following[before]
                continue
            if not blocked:
                if not easy:
                    break
                blocked = True
                shadow, extra = _reserve(expected_s, expected_job, running, units, units[job], free, now)
            before, job = job, following[job]
    return passes


@compiled
def _reserve(
    expected_s: Floats, expected_job: Ints, running: int, units: Ints, need: int, free: int, now: float
) -> tuple[float, int]:
    """Return when the first blocked job can start, and how many units are then still free.

    The time is in seconds. A unit is a GPU, core or node. The returned number of units remains free after
    the blocked job has started.
    """
    index = 0
    while index < running and (free < need or expected_s[index] <= now):
        free += units[expected_job[index]]
        index += 1
    shadow = now if index == 0 else max(now, expected_s[index - 1])
    while index < running and expected_s[index] <= shadow:
        free += units[expected_job[index]]
        index += 1
    return shadow, free - need


@compiled
def _push(heap_s: Floats, heap_job: Ints, size: int, time_s: float, job: int) -> int:
    slot = size
    while slot > 0:
        parent = (slot - 1) >> 1
        if heap_s[parent] <= time_s:
            break
        heap_s[slot], heap_job[slot] = heap_s[parent], heap_job[parent]
        slot = parent
    heap_s[slot], heap_job[slot] = time_s, job
    return size + 1


@compiled
def _pop(heap_s: Floats, heap_job: Ints, size: int) -> int:
    size -= 1
    time_s, job = heap_s[size], heap_job[size]
    slot = 0
    while True:
        child = 2 * slot + 1
        if child >= size:
            break
        if child + 1 < size and heap_s[child + 1] < heap_s[child]:
            child += 1
        if heap_s[child] >= time_s:
            break
        heap_s[slot], heap_job[slot] = heap_s[child], heap_job[child]
        slot = child
    heap_s[slot], heap_job[slot] = time_s, job
    return size


@compiled
def _insert(times_s: Floats, jobs: Ints, size: int, time_s: float, job: int) -> int:
    slot = size
    while slot > 0 and times_s[slot - 1] > time_s:
        times_s[slot], jobs[slot] = times_s[slot - 1], jobs[slot - 1]
        slot -= 1
    times_s[slot], jobs[slot] = time_s, job
    return size + 1


@compiled
def _remove(times_s: Floats, jobs: Ints, size: int, job: int) -> int:
    slot = 0
    while jobs[slot] != job:
        slot += 1
    while slot < size - 1:
        times_s[slot], jobs[slot] = times_s[slot + 1], jobs[slot + 1]
        slot += 1
    return size - 1
