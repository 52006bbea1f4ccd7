"""Compiled plan of the starts of pending jobs, equal in results to `scheduling.lookahead`.

Units are what jobs allocate on a node, such as GPUs. For each kind of nodes, the plan stores steps. A
step is a number of units that become free at the same time. The time and memory that a plan needs
therefore grow with the number of running jobs, not with the number of units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.scheduling.rankings.metis import WAITING_JOBS
from slurm_energy.simulator.kernels.compiled import compiled
from slurm_energy.simulator.running_columns import RunningColumns
from slurm_energy.simulator.workloads.job_columns import (
    DEADLINE_S,
    FIRST,
    KIND,
    LAST,
    METIS,
    PLACE,
    SHORTEST_S,
    UNITS,
    URGENT,
    JobColumns,
    PolicyRules,
)

_STEPS, _GAPS, FREE = range(3)
"""Columns of `StartPlan.tally`."""
JOB, CHOICE, AGED = range(3)
"""Rows of `StartPlan.placed`."""


class StartPlan(NamedTuple):
    """Planned use of the units (such as GPUs) of k kinds of nodes, for one scheduling pass.

    There are n pending jobs with m shapes together. A shape is one way to run a job. All arrays are empty
    for policies without a plan.

    Attributes:
        effort: for each shape, its energy above idle, raised to the exponent `thrift`, shape (m,).
        alike_end: for each job, the row after the last job with the same deadline and run time, shape (n,).
        at_place: the jobs in order of submission (the column PLACE of the jobs), shape (n,).
        urgent_jobs: number of jobs with a deadline. These jobs have the first rows.
        step_s, step_units: times in seconds from which units are free, ascending, and the number of these
            units, shape (k, s).
        gap_s, gap_units: gaps before planned starts, shape (k, g). The columns are the end of each gap in
            seconds, ascending, and the number of units that are free from now until this end.
        start_s: earliest start of each of the d shapes of the job that is being placed, shape (d,).
        placed: jobs that may start now or wait for units, in order; the shapes of these jobs; and whether
            each job has waited longer than the bound on waiting. Shape (3, p).
        tally: number of steps, number of gaps, and units free now, by kind of nodes, shape (k, 3).
    """

    effort: Floats
    alike_end: Ints
    at_place: Ints
    urgent_jobs: int
    step_s: Floats
    step_units: Ints
    gap_s: Floats
    gap_units: Ints
    start_s: Floats
    placed: Ints
    tally: Ints


def no_plan(policy: PolicyRules, jobs: JobColumns, effort: Floats, total: Ints) -> StartPlan:
    """Return empty plans for a simulation in which no start of a job is planned yet.

    The arrays have size 0 for policies that do not plan.

    Args:
        policy: parameters of the scheduling policy.
        jobs: columns of all jobs and their shapes (ways to run a job).
        effort: for each shape, its energy above idle, raised to the exponent `thrift`, as in `StartPlan`.
        total: units (GPUs, nodes or cores) of the cluster by kind of nodes.
    """
    count = len(jobs.whole) if policy.code == METIS else 0
    kinds = len(total) if count else 0
    running = min(count, int(np.sum(total)))
    placed = running + WAITING_JOBS + 1
    shapes = jobs.whole[:count, LAST] - jobs.whole[:count, FIRST]
    at_place = np.empty(count, np.int64)
    at_place[jobs.whole[:count, PLACE]] = np.arange(count)
    return StartPlan(
        effort,
        _alike_end(jobs)[:count],
        at_place,
        int(np.sum(jobs.whole[:, URGENT])),
        np.empty((kinds, running + placed + 1)),
        np.empty((kinds, running + placed + 1), np.int64),
        np.empty((kinds, WAITING_JOBS + 1)),
        np.empty((kinds, WAITING_JOBS + 1), np.int64),
        np.empty(int(np.max(shapes, initial=0))),
        np.empty((3, placed), np.int64),
        np.zeros((kinds, 3), np.int64),
    )


def _alike_end(jobs: JobColumns) -> Ints:
    columns = jobs.real[:, [DEADLINE_S, SHORTEST_S]]
    differs = np.append(np.any(columns[1:] != columns[:-1], axis=1), True)[: len(columns)]
    ends = np.where(differs, np.arange(1, len(columns) + 1), len(columns))
    # An array in reverse order would have another type, for which Numba would compile the engine again.
    alike: Ints = np.ascontiguousarray(np.minimum.accumulate(ends[::-1])[::-1])
    return alike


@compiled
def begin_plan(jobs: JobColumns, running: RunningColumns, plan: StartPlan, free: Ints, now_s: float) -> None:
    """Fill a plan of job starts with the units that are free now or are expected to become free.

    A unit is a GPU, core or node. Running jobs are expected to free their units when they end.
    """
    for kind in range(len(free)):
        plan.tally[kind, FREE], plan.tally[kind, _STEPS], plan.tally[kind, _GAPS] = free[kind], 0, 0
        if free[kind] > 0:
            _append(plan, kind, now_s, free[kind])
    later, count = 0, running.tally[0]
    while later < count and running.expected_s[later] <= now_s:
        later += 1
    overdue = later - 1
    while overdue >= 0 or later < count:
        time_s, index = np.inf, later
        if overdue >= 0:
            # A job that has exceeded its expected end is expected to run for the excess time once more.
            time_s, index = max(2 * now_s - running.expected_s[overdue], np.nextafter(now_s, np.inf)), overdue
        if later < count and running.expected_s[later] < time_s:
            time_s, index = running.expected_s[later], later
        if index == later:
            later += 1
        else:
            overdue -= 1
        shape = running.expected_shape[index]
        _append(plan, jobs.need[shape, KIND], time_s, jobs.need[shape, UNITS])


@compiled
def _append(plan: StartPlan, kind: int, time_s: float, units: int) -> None:
    """Add to the plan that `units` more units (such as GPUs) become free at a time.

    The units belong to nodes of one kind. `time_s` must not be before the last time in the plan.
    """
    size = plan.tally[kind, _STEPS]
    if size > 0 and plan.step_s[kind, size - 1] == time_s:
        plan.step_units[kind, size - 1] += units
        return
    plan.step_s[kind, size], plan.step_units[kind, size] = time_s, units
    plan.tally[kind, _STEPS] += 1


@compiled
def earliest_start_s(plan: StartPlan, kind: int, units: int, time_s: float, now_s: float) -> float:
    """Return the earliest start in seconds of a job, given the planned starts of other jobs.

    The job needs `units` units (such as GPUs) of a kind of nodes for `time_s` seconds. The result is
    infinity if the cluster does not have enough units.
    """
    start_s, index, total = np.inf, 0, 0
    while index < plan.tally[kind, _STEPS]:
        total += plan.step_units[kind, index]
        if total >= units:
            start_s = plan.step_s[kind, index]
            break
        index += 1
    if start_s <= now_s or plan.tally[kind, _GAPS] == 0:
        return start_s
    total, index = 0, 0
    while index < plan.tally[kind, _STEPS] and plan.step_s[kind, index] <= now_s:
        total += plan.step_units[kind, index]
        index += 1
    for index in range(plan.tally[kind, _GAPS]):
        if plan.gap_s[kind, index] >= now_s + time_s:
            total += plan.gap_units[kind, index]
    return now_s if units <= total else start_s


@compiled
def take_units(plan: StartPlan, kind: int, start_s: float, units: int, time_s: float, now_s: float) -> None:
    """Reserve units for a job that starts at `start_s`, which `earliest_start_s` has returned.

    The job gets those units that become free as late as possible, but not after `start_s`. As few units as
    possible are then idle until the start.
    """
    step_s, step_units = plan.step_s[kind], plan.step_units[kind]
    after, available = 0, 0
    while after < plan.tally[kind, _STEPS] and step_s[after] <= start_s:
        available += step_units[after]
        after += 1
    if units > available:
        _use_gaps(plan, kind, units - available, start_s + time_s)
        units = available
    left, waiting, first = units, 0, after
    while left > 0:
        first -= 1
        part = min(left, step_units[first])
        if step_s[first] <= now_s:
            waiting += part
        step_units[first] -= part
        left -= part
    if start_s > now_s and waiting > 0:
        _add_gap(plan, kind, start_s, waiting)
    if units > 0:
        _move_steps(plan, kind, first + (step_units[first] > 0), after, start_s + time_s, units)


@compiled
def _move_steps(plan: StartPlan, kind: int, first: int, after: int, time_s: float, units: int) -> None:
    """Replace some steps of the plan for a kind of nodes by one new step.

    A step states from which time how many units are free. The steps from index `first` up to, not including,
    `after` are removed. The new step states that `units` units are free from `time_s` on.
    """
    step_s, step_units, size = plan.step_s[kind], plan.step_units[kind], plan.tally[kind, _STEPS]
    while after < size and step_s[after] <= time_s:
        step_s[first], step_units[first] = step_s[after], step_units[after]
        first, after = first + 1, after + 1
    if first == after:
        for index in range(size, first, -1):
            step_s[index], step_units[index] = step_s[index - 1], step_units[index - 1]
    else:
        for index in range(after, size):
            step_s[first + 1 + index - after] = step_s[index]
            step_units[first + 1 + index - after] = step_units[index]
    step_s[first], step_units[first] = time_s, units
    plan.tally[kind, _STEPS] = size + 1 + first - after


@compiled
def _add_gap(plan: StartPlan, kind: int, until_s: float, units: int) -> None:
    """Add a gap to a plan of job starts.

    A gap consists of `units` units (such as GPUs) of a kind of nodes that are free from now until `until_s`.
    """
    slot = plan.tally[kind, _GAPS]
    while slot > 0 and plan.gap_s[kind, slot - 1] > until_s:
        plan.gap_s[kind, slot] = plan.gap_s[kind, slot - 1]
        plan.gap_units[kind, slot] = plan.gap_units[kind, slot - 1]
        slot -= 1
    plan.gap_s[kind, slot], plan.gap_units[kind, slot] = until_s, units
    plan.tally[kind, _GAPS] += 1


@compiled
def _use_gaps(plan: StartPlan, kind: int, count: int, end_s: float) -> None:
    """Reserve units for a job in gaps of the plan. A unit is a GPU, a core or a node.

    A gap is a group of units that are free from now until the start of a planned job. Only gaps that last at
    least until `end_s` are used. The shortest of these gaps are used first.
    """
    size = 0
    for index in range(plan.tally[kind, _GAPS]):
        until_s, units = plan.gap_s[kind, index], plan.gap_units[kind, index]
        used = min(count, units) if until_s >= end_s else 0
        count -= used
        if units > used:
            plan.gap_s[kind, size], plan.gap_units[kind, size] = until_s, units - used
            size += 1
    plan.tally[kind, _GAPS] = size
