"""The fast way for the common case: rigid jobs on equal nodes in order of submission, FCFS or EASY.

Compiled; gives the very schedule of the general engine (tests compare them), millions of jobs a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.scheduling.registry import Policy
from slurm_energy.simulator.cluster import Kind
from slurm_energy.simulator.outcome import Accounts, Fate, Outcome
from slurm_energy.simulator.settings import Discipline, Settings
from slurm_energy.simulator.workload import Workload


def suits(jobs: Workload, kinds: Sequence[Kind], policy: Policy, settings: Settings) -> bool:
    """Return whether a run is of the kind that this module can do."""
    plain = (
        policy.name == "fcfs"
        and settings.discipline in (Discipline.STRICT, Discipline.EASY)
        and settings.interval_s == 0
        and settings.horizon_s is None
        and settings.budget_watts is None
        and settings.idle_off_s is None
    )
    rigid = len(jobs.first) == jobs.count + 1 == int(jobs.first[-1]) + 1
    return plain and rigid and len(kinds) == 1 and kinds[0].failures_per_s == 0


def simulate(jobs: Workload, kinds: Sequence[Kind], settings: Settings) -> Outcome:
    """Run a workload for which `suits` holds."""
    kind = kinds[0]
    limit_s = np.where(np.isnan(jobs.time_limit_s), jobs.predicted_time_s, jobs.time_limit_s)
    total = kind.nodes * kind.units
    runnable = jobs.units <= total
    start_s = np.full(jobs.count, np.nan)
    passes = _schedule(
        jobs.submit_s,
        jobs.units,
        jobs.time_s,
        limit_s,
        runnable,
        total,
        settings.discipline == Discipline.EASY,
        start_s,
    )
    return _outcome(jobs, kind, start_s, runnable, int(passes))


def _outcome(jobs: Workload, kind: Kind, start_s: Floats, runnable: np.ndarray, passes: int) -> Outcome:
    accounts = Accounts.empty(jobs.count)
    ran = np.flatnonzero(runnable)
    accounts.start_s[:] = start_s
    accounts.end_s[:] = start_s + jobs.time_s
    accounts.shape[ran] = ran
    accounts.fate[:] = np.where(runnable, Fate.COMPLETED, Fate.UNRUNNABLE)
    accounts.run_s[ran] = jobs.time_s[ran]
    accounts.unit_s[ran] = jobs.time_s[ran] * jobs.units[ran]
    accounts.energy_joules[ran] = jobs.time_s[ran] * jobs.power_watts[ran]
    extra = jobs.power_watts[ran] - kind.unit_idle_watts * jobs.units[ran]
    end_s = float(max(np.max(accounts.end_s[ran], initial=0.0), np.max(jobs.submit_s, initial=0.0)))
    times, watts = _power(start_s[ran], accounts.end_s[ran], extra, kind.nodes * kind.idle_watts, end_s)
    energy = float(np.dot(watts[:-1], np.diff(times)))
    left_out = jobs.count - len(ran)
    return Outcome(
        workload=jobs,
        accounts=accounts,
        end_s=end_s,
        energy_joules=energy,
        idle_joules=energy - float(np.sum(accounts.energy_joules)),
        power=(times, watts),
        peak_watts=float(np.max(watts)),
        passes=passes,
        notes=[f"{left_out} jobs are larger than the cluster and never ran"] if left_out else [],
    )


def _power(
    start_s: Floats, end_s: Floats, extra: Floats, idle_watts: float, last_s: float
) -> tuple[Floats, Floats]:
    """Return the cluster's power as `meter.PowerMeter.series` gives it."""
    moments = np.concatenate([[0.0], start_s, end_s])
    order = np.argsort(moments, kind="stable")
    steps = np.concatenate([[idle_watts], extra, -extra])[order]
    moments = moments[order]
    last = np.append(np.flatnonzero(np.diff(moments)), len(moments) - 1)
    watts = np.cumsum(steps)[last]
    times = moments[last]
    return np.append(times, last_s), np.append(watts, watts[-1])


@numba.njit(cache=True)
def _schedule(
    submit_s: Floats,
    units: Ints,
    time_s: Floats,
    limit_s: Floats,
    runnable: np.ndarray,
    total: int,
    easy: bool,
    start_s: Floats,
) -> int:
    """Fill in `start_s`; return the number of looks at the queue.

    Pending jobs are a linked list in order of submission; ends are a heap; expected ends are kept sorted.
    """
    count = len(submit_s)
    following = np.full(count + 1, -1, np.int64)  # of the list; the head is at [count]
    tail = count
    heap_s = np.empty(total + 1, np.float64)
    heap_job = np.empty(total + 1, np.int64)
    heap_size = 0
    expected_s = np.empty(total + 1, np.float64)
    expected_job = np.empty(total + 1, np.int64)
    running = 0
    free, arrived, passes = total, 0, 0
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
        while job >= 0 and free > 0:
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


@numba.njit(cache=True)
def _reserve(
    expected_s: Floats, expected_job: Ints, running: int, units: Ints, need: int, free: int, now: float
) -> tuple[float, int]:
    """Return when the first blocked job can start, and how many units are free beside it then."""
    index = 0
    while index < running and (free < need or expected_s[index] <= now):
        free += units[expected_job[index]]
        index += 1
    shadow = now if index == 0 else max(now, expected_s[index - 1])
    while index < running and expected_s[index] <= shadow:
        free += units[expected_job[index]]
        index += 1
    return shadow, free - need


@numba.njit(cache=True)
def _push(heap_s: Floats, heap_job: Ints, size: int, time_s: float, job: int) -> int:
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap_s[parent] <= time_s:
            break
        heap_s[place], heap_job[place] = heap_s[parent], heap_job[parent]
        place = parent
    heap_s[place], heap_job[place] = time_s, job
    return size + 1


@numba.njit(cache=True)
def _pop(heap_s: Floats, heap_job: Ints, size: int) -> int:
    size -= 1
    time_s, job = heap_s[size], heap_job[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and heap_s[child + 1] < heap_s[child]:
            child += 1
        if heap_s[child] >= time_s:
            break
        heap_s[place], heap_job[place] = heap_s[child], heap_job[child]
        place = child
    heap_s[place], heap_job[place] = time_s, job
    return size


@numba.njit(cache=True)
def _insert(times_s: Floats, jobs: Ints, size: int, time_s: float, job: int) -> int:
    place = size
    while place > 0 and times_s[place - 1] > time_s:
        times_s[place], jobs[place] = times_s[place - 1], jobs[place - 1]
        place -= 1
    times_s[place], jobs[place] = time_s, job
    return size + 1


@numba.njit(cache=True)
def _remove(times_s: Floats, jobs: Ints, size: int, job: int) -> int:
    place = 0
    while jobs[place] != job:
        place += 1
    while place < size - 1:
        times_s[place], jobs[place] = times_s[place + 1], jobs[place + 1]
        place += 1
    return size - 1
