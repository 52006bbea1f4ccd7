"""Compiled search for the pending job that the policy ranks first.

The simulator uses the search to decide which job starts next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.kernels.compiled import compiled
from slurm_energy.simulator.kernels.pending_tree import (
    BLOCK,
    MIXED,
    NODE_ID,
    NODE_KEYS,
    NODE_LIMIT,
    NODE_PLACE,
    NODE_SIZE,
    NODE_SUBMIT,
    TRAIT_KIND,
    TRAIT_URGENT,
    TRAIT_USER,
    PendingJobs,
    most_free,
    width_of,
)
from slurm_energy.simulator.kernels.score_kernels import (
    NEVER,
    Moment,
    expected_s,
    lowest_score,
    lowest_slack_s,
    rank,
)
from slurm_energy.simulator.workloads.job_columns import (
    ID_RANK,
    KAIROS,
    KIND,
    PACKING,
    UNITS,
    JobColumns,
    PolicyRules,
)


class HeadReservation(NamedTuple):
    """Reservation for the first job, in the order of the policy, that cannot start.

    The reserved job will run on nodes of one kind. Units are what jobs allocate on a node: GPUs, cores or
    whole nodes.

    Attributes:
        kind: index of the kind of nodes on which the job will run; -1 if there is no reservation.
        start_s: expected start of the reserved job in seconds.
        spare: number of units on nodes of this kind that will be free at `start_s` and that the reserved
            job does not need.
    """

    kind: int
    start_s: float
    spare: int


@compiled
def first_job(
    policy: PolicyRules,
    pending: PendingJobs,
    jobs: JobColumns,
    now: Moment,
    free: Ints,
    held: HeadReservation,
    fitting: bool,
) -> tuple[int, int]:
    """Return the first pending job in the order of the policy, and the shape in which it shall start.

    A shape is a possible choice of resources of the job. The result is (-1, -1) if there is no such job.
    With `fitting`, only those jobs are considered that fit in the free units and do not delay the
    reservation of an earlier job.
    """
    column = NODE_KEYS
    if policy.discipline == PACKING:
        column += width_of(max(1, most_free(now.free)))
    best, best_shape, best_tier, best_score, best_id = -1, -1, 8.0, np.inf, 0
    nodes, traits, stack, scores = pending.nodes, pending.traits, pending.stack, pending.stack_score
    leaves = len(nodes) // 2
    room = _room(free, held)
    size = 1
    stack[0], scores[0, 0], scores[0, 1] = 1, 0.0, -np.inf
    while size > 0:
        size -= 1
        node, tier, score = stack[size], scores[size, 0], scores[size, 1]
        if tier > best_tier or (
            tier == best_tier
            and (score > best_score or (score == best_score and nodes[node, NODE_ID] > best_id))
        ):
            continue
        if node >= leaves:
            for job in range((node - leaves) * BLOCK, (node - leaves + 1) * BLOCK):
                if not pending.is_pending[job]:
                    continue
                tier, score, shape = rank(policy, jobs, job, now)
                number = jobs.whole[job, ID_RANK]
                if (
                    tier < best_tier
                    or (
                        tier == best_tier
                        and (score < best_score or (score == best_score and number < best_id))
                    )
                ) and (not fitting or fits(jobs, job, shape, now.now_s, free, held)):
                    best, best_shape, best_tier, best_score, best_id = job, shape, tier, score, number
            continue
        left, right = 2 * node, 2 * node + 1
        left_counts = _counts(nodes, traits, left, now.now_s, room, held, fitting)
        right_counts = _counts(nodes, traits, right, now.now_s, room, held, fitting)
        left_tier, left_score, right_tier, right_score = NEVER, 0.0, NEVER, 0.0
        if left_counts:
            left_tier, left_score = _bound(policy, nodes, traits, left, now, column)
        if right_counts:
            right_tier, right_score = _bound(policy, nodes, traits, right, now, column)
        left_first = left_tier < right_tier or (left_tier == right_tier and left_score <= right_score)
        for turn in range(2):
            if (turn == 0) == left_first:
                if right_counts:
                    stack[size], scores[size, 0], scores[size, 1] = right, right_tier, right_score
                    size += 1
            elif left_counts:
                stack[size], scores[size, 0], scores[size, 1] = left, left_tier, left_score
                size += 1
    return best, best_shape


@compiled
def _bound(
    policy: PolicyRules, nodes: Floats, traits: Ints, node: int, now: Moment, column: int
) -> tuple[float, float]:
    """Return lower bounds for the tier and the score of all jobs below a node of the search tree.

    The tier of a job is its class of urgency; a lower tier goes first. A search can skip the node if these
    bounds are worse than the best job found so far.
    """
    wait_s = max(0.0, now.now_s - nodes[node, NODE_SUBMIT])
    if wait_s >= policy.wait_bound_s:
        return 0.0, nodes[node, NODE_PLACE]
    key, urgent = nodes[node, column], traits[node, TRAIT_URGENT]
    if urgent == MIXED and policy.urgent_first:
        return 1.0, -np.inf
    if urgent == 1 and policy.urgent_first:
        return 1.0, (key if policy.code == KAIROS else lowest_slack_s(key, now.now_s))
    usage = now.best_usage
    if len(now.usage) > 0 and traits[node, TRAIT_USER] != MIXED:
        usage = now.usage[traits[node, TRAIT_USER]]
    return 2.0, lowest_score(policy, now, key, wait_s, usage, urgent != 0)


@compiled
def _room(free: Ints, held: HeadReservation) -> tuple[Ints, int, int]:
    """Return the free units of each kind of nodes, and the sizes of the largest jobs that can start.

    A job runs on one kind of nodes. One waiting job has a reservation. The first size applies to jobs
    that end before the reservation starts: it is the largest number of free units of one kind. The second
    size applies to jobs that end later: the units that the reservation needs are left out.
    """
    most, most_long = 0, 0
    for kind in range(len(free)):
        most = max(most, free[kind])
        most_long = max(most_long, min(free[kind], held.spare) if kind == held.kind else free[kind])
    return free, most, most_long


@compiled
def _counts(
    nodes: Floats,
    traits: Ints,
    node: int,
    now_s: float,
    room: tuple[Ints, int, int],
    held: HeadReservation,
    fitting: bool,
) -> bool:
    """Return whether the search for the next job must look into a part of the tree of pending jobs.

    The part is the tree node `node` with all jobs below it. The result is False if the part contains no
    pending job.

    If `fitting` is true, only jobs count that fit on the free units (GPUs, cores or nodes). The tree node
    stores the smallest need of the jobs below it. The result is False if not even this need fits.
    """
    if not fitting:
        return bool(nodes[node, NODE_SUBMIT] < np.inf)
    units, kind = nodes[node, NODE_SIZE], traits[node, TRAIT_KIND]
    free, most, most_long = room
    is_long = now_s + nodes[node, NODE_LIMIT] > held.start_s
    if kind == MIXED:
        return bool(units <= (most_long if is_long else most))
    return bool(units <= free[kind] and (kind != held.kind or not is_long or units <= held.spare))


@compiled
def fits(jobs: JobColumns, job: int, shape: int, now_s: float, free: Ints, held: HeadReservation) -> bool:
    """Return whether a job can start now in a given shape without delaying the reservation.

    A shape is one way to run a job: a kind of nodes and a number of units (GPUs, cores or nodes). The
    reservation holds units for the first waiting job. A job that ends before the start of the reservation
    does not delay it. A later end is permitted if the reservation leaves enough units.
    """
    if shape < 0:
        return False
    kind, units = jobs.need[shape, KIND], jobs.need[shape, UNITS]
    if units > free[kind]:
        return False
    if kind == held.kind and now_s + expected_s(jobs, job, shape) > held.start_s:
        return bool(units <= held.spare)
    return True
