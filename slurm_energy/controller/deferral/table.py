"""Table of the queue and of the free resources, as input for the policies that defer jobs.

The module needs numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_energy.accounting.history.arrivals import PastArrival
from slurm_energy.controller.deferral.capacity import (
    array_units,
    expected_demand,
    free_capacity,
    pending_tasks,
    requested_units,
    resource_kinds,
    total_units,
    usual_room,
)
from slurm_energy.controller.deferral.slack_columns import duration_column
from slurm_energy.deferral import Capacity, DeferralOptions, DeferralQueue
from slurm_energy.deferral.arrival_demand import ArrivalDemand, ArrivalHistory
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.signals import SignalColumns
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns
from slurm_energy.slurm.queue.node_resources import NodeResources


@dataclass(frozen=True, slots=True)
class DeferrableRows:
    """The deferrable jobs of a queue; columns have shape (d,).

    Attributes:
        rows: rows in the queue.
        eligible_s: time at which each job could have started without deferral.
        latest_start_s: latest permitted start of each job.
        planned_s: start that the last plan assigned to the job; NaN means that the job is not held.
    """

    rows: Ints
    eligible_s: Floats
    latest_start_s: Floats
    planned_s: Floats


def deferral_table(
    queue: QueueColumns,
    leader: Ints,
    jobs: DeferrableRows,
    time_s: Floats,
    power_watts: Floats,
    nodes: Sequence[NodeResources],
    arrivals: Sequence[PastArrival],
    options: DeferralOptions,
    signals: SignalColumns,
    now_s: float,
) -> DeferralQueue:
    """Return the table for a deferral policy: first the deferrable jobs, then the urgent jobs by priority.

    Urgent jobs are in the table because they receive resources before the deferrable jobs. An urgent job
    array that cannot run all its tasks at the same time counts until its last tasks end. A deferrable array
    needs at most the units that are usually free until its latest start. Its cost and run time are those of a
    task.

    Args:
        queue: all jobs.
        leader: for each row of the queue the row that represents its whole job array or heterogeneous job,
            see `scheduling_tables.leader_rows`.
        jobs: the deferrable jobs.
        time_s: predicted run time of each job of the queue.
        power_watts: predicted mean power of each job of the queue.
        nodes: nodes of the cluster; an empty value means that the nodes are unknown, so that the resources
            count as unlimited.
        arrivals: jobs that have ended. The resources that future jobs will need are forecast from these jobs
            and from the queue.
        options: parameters of the deferral policy.
        signals: forecasts of the signals.
        now_s: Unix seconds.
    """
    urgent = _urgent_rows(queue, leader, jobs.rows)
    rows, unknown = np.concatenate([jobs.rows, urgent]), np.full(len(urgent), np.nan)
    kinds = resource_kinds(queue, nodes)
    hardware, units = requested_units(queue, kinds)
    capacity = free_capacity(queue, units, hardware, kinds, time_s, nodes, signals, now_s)
    run_s, needed = time_s, units
    if capacity is not None:
        total = total_units(nodes, kinds)
        queued = _queued_arrivals(queue, jobs, time_s, units, hardware, now_s)
        demand = expected_demand(arrivals, queued, kinds, signals, now_s)
        capacity = _with_reserves(capacity, demand, total, options)
        tasks = pending_tasks(queue, leader)
        room = _array_room(jobs, capacity, total, tasks, units, hardware)
        needed, rounds = array_units(tasks, units, room)
        run_s = time_s.copy()
        run_s[urgent] *= rounds[urgent]
    return DeferralQueue(
        now_s=now_s,
        job_id=queue.job_id[rows],
        earliest_s=np.maximum(now_s, np.append(jobs.eligible_s, np.full(len(urgent), now_s))),
        latest_start_s=np.append(jobs.latest_start_s, unknown),
        time_s=run_s[rows],
        power_watts=power_watts[rows],
        units=needed[rows],
        hardware=hardware[rows],
        checkpointable=np.zeros(len(rows), np.bool_),
        signals=signals,
        capacity=capacity,
        planned_s=np.append(jobs.planned_s, unknown),
        slack_s=np.append(jobs.latest_start_s - jobs.eligible_s, unknown),
    )


def _queued_arrivals(
    queue: QueueColumns, jobs: DeferrableRows, time_s: Floats, units: Floats, hardware: Ints, now_s: float
) -> ArrivalHistory:
    """Return the jobs of the queue as arrivals. The tasks of a job array are one row."""
    slack_s = np.nan_to_num(duration_column(queue, "ENERGY_SLACK"))
    slack_s[jobs.rows] = jobs.latest_start_s - jobs.eligible_s
    count = np.maximum(queue.tasks, 1).astype(np.float64)
    return ArrivalHistory(now_s, queue.submit_s, time_s, units, hardware, slack_s, count)


def _array_room(
    jobs: DeferrableRows, capacity: Capacity, total: Floats, tasks: Floats, units: Floats, hardware: Ints
) -> Floats:
    """Return the maximum number of units that the tasks of each job may occupy at the same time.

    Urgent arrays may occupy all units of the cluster, deferrable arrays those that are usually free.
    """
    room: Floats = total[hardware]
    for row, latest_s in zip(jobs.rows.tolist(), jobs.latest_start_s.tolist(), strict=True):
        if tasks[row] > 1:
            room[row] = usual_room(capacity, int(hardware[row]), float(units[row]), latest_s)
    return room


def _with_reserves(
    capacity: Capacity, demand: ArrivalDemand, total: Floats, options: DeferralOptions
) -> Capacity:
    """Return the capacity with the reserves for jobs that are not submitted yet.

    Args:
        capacity: resources that running jobs leave free.
        demand: expected demand of future jobs.
        total: number of units of each kind of resource.
        options: parameters of the deferral policy.
    """
    return replace(
        capacity,
        reserve=demand.mean + options.reserve_weight * demand.deviation,
        high_reserve=demand.mean + options.margin_weight * demand.deviation,
        release_s=demand.hold_s / np.maximum(1.0, total),
    )


def may_wait(queue: QueueColumns, leader: Ints, opted_out: Iterable[int], continued: Iterable[int]) -> Bools:
    """Return a mask of the pending jobs whose start may be delayed (held).

    Jobs that depend on other jobs are included. Otherwise such a job would start as soon as the other jobs
    end, before the next plan. A job that has run before is excluded. Only a job that was suspended by
    senergyctld may be delayed again.

    Args:
        queue: all jobs.
        leader: for each row of the queue the row that represents its whole job array or heterogeneous job.
        opted_out: ids of the jobs whose users have set an earlier begin time than senergyctld.
        continued: rows of the jobs that senergyctld suspended.
    """
    rows = np.arange(queue.count)
    new = (queue.restart_count == 0) | np.isin(rows, list(continued))
    is_out = np.isin(queue.job_id, list(opted_out))
    may: Bools = (queue.state == PENDING) & (leader == rows) & ~queue.held & new & ~is_out
    return may


def _urgent_rows(queue: QueueColumns, leader: Ints, deferrable: Ints) -> Ints:
    """Return the indices of the pending jobs that may start now and are not deferrable.

    The job with the highest priority comes first.
    """
    waits = (queue.state == PENDING) & (leader == np.arange(queue.count)) & ~queue.held & ~queue.dependent
    waits[deferrable] = False
    rows: Ints = np.flatnonzero(waits)
    return rows[np.argsort(-queue.priority[rows], kind="stable")]
