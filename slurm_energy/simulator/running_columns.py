"""Compiled table of the running jobs, for the column engine of the simulator.

The column engine is the fast engine that simulates all built-in policies. The table consists of a
heap of the ends of jobs, and a list of their expected ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.kernels.compiled import compiled


class RunningColumns(NamedTuple):
    """Running jobs of the simulation, in two orders: by end, and by expected end.

    Each array has room for the maximum number of jobs that can run at once.

    Attributes:
        end_s, number, job: heap of the jobs, ordered by the time of the end. Jobs with equal ends are
            ordered by the number of the start.
        expected_s, expected_shape, expected_job: list of the same jobs, sorted by expected end.
        tally: number of running jobs, and number of starts so far, shape (2,).
    """

    end_s: Floats
    number: Ints
    job: Ints
    expected_s: Floats
    expected_shape: Ints
    expected_job: Ints
    tally: Ints


def no_running_jobs(most: int) -> RunningColumns:
    """Return empty columns with space for at most `most` running jobs."""
    times = np.empty(most + 1), np.empty(most + 1)
    rows = [np.empty(most + 1, np.int64) for _ in range(4)]
    return RunningColumns(times[0], rows[0], rows[1], times[1], rows[2], rows[3], np.zeros(2, np.int64))


@compiled
def next_end_s(running: RunningColumns) -> float:
    """Return the time in seconds at which the first running job ends; infinity if no job runs."""
    return float(running.end_s[0]) if running.tally[0] > 0 else np.inf


@compiled
def push(running: RunningColumns, end_s: float, expected_s: float, job: int, shape: int) -> None:
    """Add a job that starts now to the columns of running jobs.

    Args:
        running: the running jobs.
        end_s: time in seconds at which the job ends.
        expected_s: time in seconds at which the job is expected to end.
        job: row of the job in `JobColumns`.
        shape: row in `JobColumns` of the shape (way to run the job) in which the job starts.
    """
    size = running.tally[0]
    running.tally[0] += 1
    running.tally[1] += 1
    slot = size
    while slot > 0:
        parent = (slot - 1) >> 1
        if running.end_s[parent] <= end_s:  # of equal ends the earlier start comes first
            break
        _move(running, parent, slot)
        slot = parent
    running.end_s[slot], running.number[slot], running.job[slot] = end_s, running.tally[1], job
    low, high = 0, size
    while low < high:
        middle = (low + high) >> 1
        if running.expected_s[middle] <= expected_s:
            low = middle + 1
        else:
            high = middle
    for slot in range(size, low, -1):
        running.expected_s[slot] = running.expected_s[slot - 1]
        running.expected_shape[slot] = running.expected_shape[slot - 1]
        running.expected_job[slot] = running.expected_job[slot - 1]
    running.expected_s[low], running.expected_shape[low], running.expected_job[low] = expected_s, shape, job


@compiled
def pop(running: RunningColumns) -> int:
    """Remove the job that ends first from the running jobs. Return its row number."""
    job = running.job[0]
    running.tally[0] -= 1
    size = running.tally[0]
    end_s, number, moved = running.end_s[size], running.number[size], running.job[size]
    slot = 0
    while True:
        child = 2 * slot + 1
        if child >= size:
            break
        if child + 1 < size and _before(running, child + 1, running.end_s[child], running.number[child]):
            child += 1
        if not _before(running, child, end_s, number):
            break
        _move(running, child, slot)
        slot = child
    running.end_s[slot], running.number[slot], running.job[slot] = end_s, number, moved
    _forget(running, job, size)
    return int(job)


@compiled
def withdraw(running: RunningColumns, job: int) -> None:
    """Remove an interrupted job from the table of running jobs."""
    slot = 0
    while running.job[slot] != job:
        slot += 1
    while slot > 0:  # as if this job ended first
        parent = (slot - 1) >> 1
        _move(running, parent, slot)
        slot = parent
    running.job[0] = job
    pop(running)


@compiled
def _forget(running: RunningColumns, job: int, size: int) -> None:
    """Remove a job from the list of the expected ends of running jobs.

    `size` is the number of jobs that remain in the list.
    """
    slot = 0
    while running.expected_job[slot] != job:
        slot += 1
    for index in range(slot, size):
        running.expected_s[index] = running.expected_s[index + 1]
        running.expected_shape[index] = running.expected_shape[index + 1]
        running.expected_job[index] = running.expected_job[index + 1]


@compiled
def _before(running: RunningColumns, slot: int, end_s: float, number: int) -> bool:
    if running.end_s[slot] != end_s:
        return bool(running.end_s[slot] < end_s)
    return bool(running.number[slot] < number)


@compiled
def _move(running: RunningColumns, source: int, target: int) -> None:
    running.end_s[target] = running.end_s[source]
    running.number[target] = running.number[source]
    running.job[target] = running.job[source]
