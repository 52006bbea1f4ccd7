"""Observation and action of a learning scheduler, with a fixed number of jobs and features."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.scheduling.queue import Floats, Queue
from slurm_energy.scheduling.ranking import Options, Ranking, least, ranked
from slurm_energy.simulator.simulation_state import SimulationState

JOB_FEATURES: Final = (
    "present",
    "wait",
    "fastest_time",
    "time_ratio",
    "energy_ratio",
    "fast_size",
    "thrifty_size",
    "fast_fits",
    "thrifty_fits",
    "slack",
)
"""Features of a job; `observe` defines them."""
CLUSTER_FEATURES: Final = ("pending", "unseen", "power")
"""Features of the cluster, followed by the free share of each kind of nodes."""
MAX_VALUE: Final = 20.0

Observation = dict[str, NDArray[np.float32]]


def visible(queue: Queue, count: int) -> NDArray[np.int64]:
    """Return the rows of the first `count` pending jobs, in order of their submission.

    Jobs with the same time of submission are ordered by job id.
    """
    order: NDArray[np.int64] = np.lexsort((queue.jobs.job_id, queue.jobs.submit_s))
    return order[:count]


def observe(queue: Queue, state: SimulationState, count: int, max_watts: float) -> Observation:
    """Return what a learning agent sees at a scheduling pass: features of jobs and cluster.

    All values are from -20 to 20. A shape is a possible choice of resources of a job. Only possible shapes
    count. The fastest shape is the shape with the shortest run time, and the thriftiest shape is the shape
    with the least energy. The features of a job are, in this order:

    - the constant 1;
    - log(1 + wait / 60 s);
    - the logarithm of the run time of the fastest shape in minutes;
    - the logarithm of the ratio of run times, thriftiest shape to fastest shape;
    - the logarithm of the ratio of energies, thriftiest shape to fastest shape;
    - the fractions of the cluster that the fastest and the thriftiest shape take;
    - whether the fastest and the thriftiest shape fit in the free units;
    - the time until the deadline divided by the shortest run time, at most 10; 10 without a
    deadline.

    A job without a possible shape is a row of zeros.

    Args:
        queue: the pending jobs.
        state: state of the cluster.
        count: number of visible jobs. If fewer jobs are pending, the remaining rows are zeros.
        max_watts: power in watts by which the cluster's power is divided, so that the feature has no unit.
    """
    table, rows = queue.alternatives, visible(queue, count)
    fast, _ = least(table.time_s, table)
    thrifty, _ = least(table.energy_joules, table)
    possible = fast >= 0  # other rows index the last shape, and become zeros
    total_units = float(state.total_units.sum())
    free = state.free_units[table.hardware]
    slack = np.clip((queue.jobs.deadline_s - queue.now_s) / table.time_s[fast], -10, 10)
    columns = [
        np.ones(queue.jobs.count),
        np.log1p(queue.wait_s / 60),
        np.log(np.maximum(table.time_s[fast], 1.0) / 60),
        np.log(table.time_s[thrifty] / table.time_s[fast]),
        np.log(np.maximum(table.energy_joules[thrifty], 1e-9) / np.maximum(table.energy_joules[fast], 1e-9)),
        table.gpus[fast] / total_units,
        table.gpus[thrifty] / total_units,
        table.gpus[fast] <= free[fast],
        table.gpus[thrifty] <= free[thrifty],
        np.where(np.isnan(slack), 10.0, slack),
    ]
    features = np.stack([np.where(possible, column, 0.0) for column in columns], axis=1)
    jobs = np.zeros((count, len(JOB_FEATURES)), np.float32)
    jobs[: len(rows)] = np.clip(np.nan_to_num(features[rows]), -MAX_VALUE, MAX_VALUE)
    cluster = [
        np.log1p(queue.jobs.count),
        np.log1p(max(0, queue.jobs.count - count)),
        state.watts / max_watts,
        *(state.free_units / np.maximum(1, state.total_units)),
    ]
    return {"jobs": jobs, "cluster": np.clip(np.array(cluster, np.float32), -MAX_VALUE, MAX_VALUE)}


def ranking_of(queue: Queue, action: NDArray[np.floating], options: Options, rest: Ranking) -> Ranking:
    """Return the ranking of the pending jobs that follows from the action of a learning scheduler.

    Args:
        queue: the pending jobs.
        action: priority and thrift of each visible job, from 0 to 1, shape (count, 2). Jobs with a higher
            priority go first. A job gets the shape (number and kind of GPUs) with the lowest time^(1-thrift)
            * energy^thrift. A thrift of 0 selects the fastest shape, 0.5 the shape with the lowest
            energy-delay product, and 1 the shape with the least energy.
        options: options of the policy.
        rest: ranking by a policy, which orders the jobs that are not visible. These jobs go after all
            visible jobs.
    """
    table, rows = queue.alternatives, visible(queue, len(action))
    values = np.clip(np.asarray(action, np.float64), 0.0, 1.0)[: len(rows)]
    thrift: Floats = np.zeros(queue.jobs.count)
    thrift[rows] = values[:, 1]
    weight = np.repeat(thrift, np.diff(table.first))
    cost = (1 - weight) * np.log(table.time_s) + weight * np.log(np.maximum(table.energy_joules, 1e-9))
    choice, _ = least(cost, table)
    score = np.empty(queue.jobs.count)
    score[rest.order(queue.jobs.job_id)] = np.arange(queue.jobs.count, dtype=np.float64)
    unseen = np.ones(queue.jobs.count, np.bool_)
    unseen[rows] = False
    score[rows] = -values[:, 0] + 1e-9 * np.arange(len(rows))  # equal priorities: in order of submission
    score[unseen] += 1.0
    return ranked(queue, options, np.where(unseen, rest.choice, choice), score)
