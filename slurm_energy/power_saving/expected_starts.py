"""Expected starts and ends of known jobs, as changes of the number of nodes that are in use."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.power_saving.demand_forecast import Floats

MAX_PENDING: Final = 500
"""Number of pending jobs, from the head of the queue, whose starts are estimated."""


@dataclass(frozen=True, slots=True)
class KnownJobs:
    """Running and pending jobs that use the nodes of one pool. Times are in seconds from now.

    A pool is a set of interchangeable nodes in the same partitions.

    Attributes:
        running_end_s: expected end of each running job. A job whose expected end is in the past may end at
            any moment.
        running_nodes: nodes of each running job.
        pending_nodes: nodes of each pending job, in the order of the queue.
        pending_time_s: expected run time of each pending job.
        pending_from_s: earliest start of each pending job. This start is later than now for a deferred job
            and for a job with a begin time.
    """

    running_end_s: Sequence[float] = ()
    running_nodes: Sequence[float] = ()
    pending_nodes: Sequence[float] = ()
    pending_time_s: Sequence[float] = ()
    pending_from_s: Sequence[float] = ()


def expected_changes(jobs: KnownJobs, free_nodes: float) -> tuple[Floats, Floats]:
    """Forecast when known jobs will change the number of nodes in use.

    Return two arrays: the times of the changes in seconds from now, and the changes in nodes. Pending jobs
    start in the order of the queue, as soon as enough nodes are free and their earliest start has come. Jobs
    that are larger than the pool of nodes never start.

    Args:
        jobs: running and pending jobs.
        free_nodes: nodes without a job, whether on or off.
    """
    ends = [
        (max(0.0, end_s), nodes) for end_s, nodes in zip(jobs.running_end_s, jobs.running_nodes, strict=True)
    ]
    # An overdue job may continue: pending jobs may get its nodes, but no release is counted for it.
    changes = [(end_s, -nodes) for end_s, nodes in ends if end_s > 0]
    heapq.heapify(ends)
    total = free_nodes + sum(nodes for _, nodes in ends)
    now_s, free = 0.0, free_nodes
    pending = zip(jobs.pending_from_s, jobs.pending_nodes, jobs.pending_time_s, strict=True)
    for _, (from_s, nodes, time_s) in zip(range(MAX_PENDING), pending, strict=False):
        if nodes > total + 1e-9:
            continue
        if from_s > now_s:
            # A deferred job does not block the jobs behind it.
            changes += [(from_s, nodes), (from_s + time_s, -nodes)]
            continue
        while nodes > free + 1e-9:
            end_s, released = heapq.heappop(ends)
            now_s, free = max(now_s, end_s), free + released
        free -= nodes
        heapq.heappush(ends, (now_s + time_s, nodes))
        changes += [(now_s, nodes), (now_s + time_s, -nodes)]
    table = np.array(changes, np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
