"""Search tree of the pending jobs, in compiled code.

With the tree, a search for the best job that fits examines only few jobs. The leaves of the tree are blocks
of neighbouring jobs in `JobColumns`. Each node of the tree stores, for each column on which scores and sizes
depend, the lowest value over the pending jobs below it. A score computed from these values is a lower bound
of the scores of these jobs. A search therefore skips nodes that cannot contain a better job than the best
job found so far. The search also skips nodes whose smallest or shortest job does not fit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.simulator.kernels.compiled import compiled
from slurm_energy.simulator.kernels.pending_bits import BitSet, add, empty_set, remove
from slurm_energy.simulator.kernels.score_kernels import expected_s
from slurm_energy.simulator.workloads.job_columns import (
    AURACHRONOS,
    BLEND,
    CHRONOS,
    FASTEST,
    FIRST,
    ID_RANK,
    KAIROS,
    KEY,
    KEY_RANK,
    KIND,
    LAST,
    LATEST_S,
    LEAN_POLICIES,
    LEANEST,
    LEFT,
    METIS,
    PACKING,
    PLACE,
    POSSIBLE,
    SJF,
    SUBMIT_S,
    THEMIS,
    TIME_S,
    UNITS,
    URGENT,
    USER,
    JobColumns,
    PolicyRules,
    shape_value,
)

BLOCK: Final = 8
"""Jobs per leaf."""
NODE_SUBMIT, NODE_PLACE, NODE_ID, NODE_LIMIT, NODE_SIZE, NODE_KEYS = range(6)
"""Columns of nodes. From NODE_KEYS on: lowest key, under packing by the width of the largest shape."""
TRAIT_KIND, TRAIT_USER, TRAIT_URGENT = range(3)
"""Columns of traits."""
MIXED: Final = -1
_DEPTH: Final = 64


class PendingJobs(NamedTuple):
    """Search tree in which compiled code finds the best pending job without examining all jobs.

    The tree has l leaves. Each leaf is a block of 8 neighbouring jobs of the n jobs in `JobColumns`. Each
    node of the tree has c columns. A column holds the lowest value of one property over the pending jobs
    below the node. KEY_RANK and PLACE are columns of `JobColumns`.

    Attributes:
        nodes: lowest values over the pending jobs below each tree node, shape (2 l, c). The root is node
            1; nodes 2 i and 2 i + 1 are the children of node i.
        rows: values of each job, valid while the job is pending, shape (l * 8, c).
        traits: for each tree node, three properties of the jobs below it: the kind of cluster nodes, the
            user, and whether there is a deadline. -1 means that the jobs differ in this property. Shape
            (2 l, 3).
        is_pending: whether each job is pending, shape (l * 8,).
        jobs, position: the pending jobs in any order, and the index of each job in this list, shape (n,).
        tally: number of pending jobs, and number of jobs in `urgent`, shape (2,).
        urgent: pending jobs with a deadline, in the order in which they became pending, shape (n,). Empty
            if the policy does not preempt.
        keys: set of the KEY_RANK values of pending jobs, for medians. Empty for policies that need no
            median.
        in_order: set of the rows of pending jobs, for the policy `metis`. Empty for other policies.
        places: set of the PLACE values of pending jobs, for the policy `metis`. Empty for other policies.
        stack: work space of searches, shape (64,). It holds the tree nodes to visit.
        stack_score: tiers and scores of the tree nodes in `stack`, shape (64, 2).
    """

    nodes: Floats
    rows: Floats
    traits: Ints
    is_pending: Bools
    jobs: Ints
    position: Ints
    tally: Ints
    urgent: Ints
    keys: BitSet
    in_order: BitSet
    places: BitSet
    stack: Ints
    stack_score: Floats


def no_jobs(policy: PolicyRules, jobs: JobColumns, total: Ints) -> PendingJobs:
    """Return an empty data structure for pending jobs, with room for all jobs of the simulation.

    Args:
        policy: rules of the scheduling policy.
        jobs: all jobs of the simulation.
        total: number of GPUs (or nodes) by kind of nodes.
    """
    count = len(jobs.whole)
    leaves = 1
    while leaves * BLOCK < count:
        leaves *= 2
    widths = int(np.max(total, initial=1)).bit_length() if policy.discipline == PACKING else 1
    return PendingJobs(
        np.full((2 * leaves, NODE_KEYS + widths), np.inf),
        np.empty((leaves * BLOCK, NODE_KEYS + widths)),
        _traits(policy, jobs, leaves, len(total)),
        np.zeros(leaves * BLOCK, np.bool_),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.zeros(2, np.int64),
        np.empty(count if policy.preempts else 0, np.int64),
        empty_set(count if policy.code == BLEND else 0),
        empty_set(count if policy.code == METIS else 0),
        empty_set(count if policy.code == METIS else 0),
        np.empty(_DEPTH, np.int64),
        np.empty((_DEPTH, 2)),
    )


def _traits(policy: PolicyRules, jobs: JobColumns, leaves: int, kinds: int) -> Ints:
    count = len(jobs.whole)
    own = np.full((leaves * BLOCK, 3), MIXED, np.int64)
    if kinds == 1:
        own[:, TRAIT_KIND] = 0
    elif count and not policy.preempts and policy.discipline != PACKING:
        lean = policy.code in LEAN_POLICIES
        choice = jobs.whole[:, LEANEST if lean else FASTEST]
        fixed = (jobs.whole[:, LEANEST] == jobs.whole[:, FASTEST]) | (jobs.whole[:, URGENT] == 0)
        fixed |= policy.code not in (KAIROS, BLEND, AURACHRONOS)
        own[:count, TRAIT_KIND] = np.where(fixed, jobs.need[choice, KIND], MIXED)
    own[:count, TRAIT_USER], own[:count, TRAIT_URGENT] = jobs.whole[:, USER], jobs.whole[:, URGENT]
    own[count:] = own[count - 1] if count else 0
    traits = np.empty((2 * leaves, 3), np.int64)
    level = own.reshape(leaves, BLOCK, 3)
    while True:
        lowest, highest = level.min(axis=1), level.max(axis=1)
        merged = np.where(lowest == highest, lowest, MIXED)
        traits[len(merged) : 2 * len(merged)] = merged
        if len(merged) == 1:
            return traits
        level = merged.reshape(-1, 2, 3)


@compiled
def enter(policy: PolicyRules, pending: PendingJobs, jobs: JobColumns, job: int) -> None:
    """Add a job to the data structure of pending jobs."""
    row, nodes = pending.rows[job], pending.nodes
    _fill(policy, jobs, job, row)
    pending.is_pending[job] = True
    pending.position[job] = pending.tally[0]
    pending.jobs[pending.tally[0]] = job
    pending.tally[0] += 1
    if len(pending.urgent) > 0 and jobs.whole[job, URGENT]:
        pending.urgent[pending.tally[1]] = job
        pending.tally[1] += 1
    if _has_median(policy) and jobs.whole[job, LEANEST] >= 0:
        add(pending.keys, jobs.whole[job, KEY_RANK])
    if policy.code == METIS:
        add(pending.in_order, job)
        add(pending.places, jobs.whole[job, PLACE])
    node = len(nodes) // 2 + job // BLOCK
    changed = True
    while node > 0 and changed:
        changed = False
        for column in range(nodes.shape[1]):
            if row[column] < nodes[node, column]:
                nodes[node, column] = row[column]
                changed = True
        node >>= 1


@compiled
def leave(policy: PolicyRules, pending: PendingJobs, jobs: JobColumns, job: int) -> None:
    """Remove a job from all data structures of the pending jobs."""
    nodes = pending.nodes
    pending.is_pending[job] = False
    pending.tally[0] -= 1
    last = pending.jobs[pending.tally[0]]
    pending.jobs[pending.position[job]], pending.position[last] = last, pending.position[job]
    if len(pending.urgent) > 0 and jobs.whole[job, URGENT]:
        _leave_urgent(pending, job)
    if _has_median(policy) and jobs.whole[job, LEANEST] >= 0:
        remove(pending.keys, jobs.whole[job, KEY_RANK])
    if policy.code == METIS:
        remove(pending.in_order, job)
        remove(pending.places, jobs.whole[job, PLACE])
    block = job // BLOCK
    node = len(nodes) // 2 + block
    changed = False
    for column in range(nodes.shape[1]):
        least = np.inf
        for other in range(block * BLOCK, (block + 1) * BLOCK):
            if pending.is_pending[other]:
                least = min(least, pending.rows[other, column])
        if least != nodes[node, column]:
            nodes[node, column] = least
            changed = True
    node >>= 1
    while node > 0 and changed:
        changed = False
        for column in range(nodes.shape[1]):
            least = min(nodes[2 * node, column], nodes[2 * node + 1, column])
            if least != nodes[node, column]:
                nodes[node, column] = least
                changed = True
        node >>= 1


@compiled
def _has_median(policy: PolicyRules) -> bool:
    return policy.code == BLEND and policy.discipline != PACKING


@compiled
def _leave_urgent(pending: PendingJobs, job: int) -> None:
    index = 0
    while pending.urgent[index] != job:
        index += 1
    pending.tally[1] -= 1
    for later in range(index, pending.tally[1]):
        pending.urgent[later] = pending.urgent[later + 1]


@compiled
def _fill(policy: PolicyRules, jobs: JobColumns, job: int, row: Floats) -> None:
    """Compute the values of a newly pending job for the search tree, and write them to `row`.

    The search tree of the pending jobs finds the best job that fits without examining all jobs.
    """
    code, packing = policy.code, policy.discipline == PACKING
    urgent = jobs.whole[job, URGENT] == 1
    by_slack = urgent and code in (CHRONOS, AURACHRONOS)
    row[NODE_SUBMIT], row[NODE_PLACE] = jobs.real[job, SUBMIT_S], jobs.whole[job, PLACE]
    row[NODE_ID] = jobs.whole[job, ID_RANK]
    row[NODE_KEYS:] = jobs.real[job, LATEST_S] if by_slack else jobs.real[job, KEY]
    lean = code in LEAN_POLICIES
    choice = jobs.whole[job, LEANEST] if lean else jobs.whole[job, FASTEST]
    varies = packing or code == METIS or (urgent and code in (KAIROS, BLEND, AURACHRONOS))
    if not varies and choice >= 0:
        row[NODE_SIZE], row[NODE_LIMIT] = jobs.need[choice, UNITS], expected_s(jobs, job, choice)
        return
    row[NODE_SIZE], row[NODE_LIMIT] = np.inf, np.inf
    by_width = packing and not by_slack and (lean or code in (SJF, THEMIS, CHRONOS))
    if by_width:
        row[NODE_KEYS:] = np.inf
    for shape in range(jobs.whole[job, FIRST], jobs.whole[job, LAST]):
        if not jobs.need[shape, POSSIBLE]:
            continue
        units = jobs.need[shape, UNITS]
        row[NODE_SIZE] = min(row[NODE_SIZE], units)
        row[NODE_LIMIT] = min(row[NODE_LIMIT], expected_s(jobs, job, shape))
        if by_width:
            left = jobs.real[job, LEFT]
            value = shape_value(code, jobs, shape, left) if lean else jobs.load[shape, TIME_S] * left
            for width in range(width_of(units), len(row) - NODE_KEYS):
                row[NODE_KEYS + width] = min(row[NODE_KEYS + width], value)


@compiled
def width_of(units: int) -> int:
    """Return the index of the highest set bit of a positive number."""
    width = 0
    while units > 1:
        units >>= 1
        width += 1
    return width


@compiled
def may_start(pending: PendingJobs, free: Ints) -> bool:
    """Return whether the smallest pending job may fit in the free units of one kind of nodes.

    A unit is a GPU, a core or a node. If the result is False, no pending job fits. A job counts with the
    smallest number of units with which it could run.
    """
    return bool(pending.nodes[1, NODE_SIZE] <= most_free(free))


@compiled
def most_free(free: Ints) -> int:
    """Return how many units are free on the kind of nodes that has the most free units."""
    most = 0
    for kind in range(len(free)):
        most = max(most, free[kind])
    return most


@compiled
def longest_wait_s(pending: PendingJobs, now_s: float) -> float:
    """Return the longest wait of a pending job in seconds."""
    return float(max(0.0, now_s - pending.nodes[1, NODE_SUBMIT]))
