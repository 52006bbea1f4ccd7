"""One scheduling pass of the column engine, compiled: it selects the pending jobs that start now.

Jobs are not sorted. The best job is found by looking at pending jobs in an order in which their scores cannot
fall below a growing bound, until that bound is above the best score found. Jobs that fit into few free units
are found in sets of jobs of about the same size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.compiled import compiled
from slurm_energy.simulator.pending_bits import BitSet, Words, add, empty_set, following, member, remove
from slurm_energy.simulator.score_kernels import (
    AURACHRONOS,
    BLEND,
    KAIROS,
    LEAN_POLICIES,
    JobColumns,
    PolicyRules,
    evaluate,
    least_score,
)


class SizeSets(NamedTuple):
    """Sets of pending jobs of about the same size: a row of each array is a `BitSet`, c rows.

    Attributes:
        ranks_words, ranks_sums, ranks_counts: jobs.
        places_words, places_sums, places_counts: places of jobs in order of submission.
        kind, units: kind of nodes and least units of the jobs of a set, shape (c,); units of 0: jobs whose
            shape is chosen anew at each pass.
        of_job: the set of each job, shape (n,).
    """

    ranks_words: Words
    ranks_sums: Words
    ranks_counts: Ints
    places_words: Words
    places_sums: Words
    places_counts: Ints
    kind: Ints
    units: Ints
    of_job: Ints


class PendingColumns(NamedTuple):
    """The pending jobs.

    Attributes:
        ranks: all jobs but those with a deadline that come before others.
        urgent: places of these jobs in order of submission.
        places: places in order of submission of all jobs.
        sizes: all jobs by size.
        shapes: number of pending shapes by kind of nodes and units, shape (k, largest + 1).
        tally: number of pending jobs, shape (1,).
    """

    ranks: BitSet
    urgent: BitSet
    places: BitSet
    sizes: SizeSets
    shapes: Ints
    tally: Ints


class Moment(NamedTuple):
    """What scores depend on besides the job.

    Attributes:
        now_s: current time in seconds.
        usage: factor of each user, as from `user_factors`, shape (u,).
        least_usage: lowest of these factors.
        middle: median of the energy-delay products of the pending jobs, for `blend`.
        longest_wait_s: longest wait of a pending job in seconds.
    """

    now_s: float
    usage: Floats
    least_usage: float
    middle: float
    longest_wait_s: float


class HeadReservation(NamedTuple):
    """Reservation of the first job that cannot start.

    Attributes:
        kind: kind of nodes.
        start_s: its expected start in seconds.
        spare: units of this kind that are free then and that the job does not need.
    """

    kind: int
    start_s: float
    spare: int


def no_jobs(jobs: JobColumns, policy: PolicyRules, total: Ints) -> PendingColumns:
    """Return the empty set of pending jobs for jobs on a cluster with `total` units by kind of nodes."""
    count = len(jobs.row)
    widths = max(1, int(np.max(total, initial=1)).bit_length())
    classes = len(total) * widths + 1
    ranks, places = _empty_sets(classes, count), _empty_sets(classes, count)
    kind = np.append(np.repeat(np.arange(len(total)), widths), 0)
    units = np.append(np.tile(2 ** np.arange(widths), len(total)), 0)
    of_job = _classes(jobs, policy, widths, classes - 1)
    sizes = SizeSets(
        ranks.words,
        ranks.sums,
        ranks.counts,
        places.words,
        places.sums,
        places.counts,
        kind,
        units,
        of_job,
    )
    shapes = np.zeros((len(total), int(np.max(total, initial=0)) + 1), np.int64)
    return PendingColumns(
        empty_set(count), empty_set(count), empty_set(count), sizes, shapes, np.zeros(1, np.int64)
    )


def _empty_sets(number: int, size: int) -> BitSet:
    """Return `number` empty sets of numbers below `size`, one per row of each array."""
    one = empty_set(size)
    return BitSet(
        np.zeros((number, len(one.words)), np.uint64),
        np.zeros((number, len(one.sums)), np.uint64),
        np.zeros((number, len(one.counts)), np.int64),
    )


def _classes(jobs: JobColumns, policy: PolicyRules, widths: int, changing: int) -> Ints:
    """Return the set of each job by the shape that the policy always chooses for it."""
    choice = jobs.leanest if policy.code in LEAN_POLICIES else jobs.fastest
    if not len(choice):
        return np.zeros(0, np.int64)
    width = np.log2(np.maximum(1, jobs.units[choice])).astype(np.int64)
    fixed = choice >= 0
    if policy.code == KAIROS:
        fixed &= (jobs.good == jobs.leanest) & ~jobs.urgent
    elif policy.code in (BLEND, AURACHRONOS):
        fixed &= np.isnan(jobs.deadline_s)
    return np.where(fixed, jobs.hardware[choice] * widths + width, changing)


@compiled
def enter(pending: PendingColumns, jobs: JobColumns, job: int) -> None:
    """Add a job to the pending jobs."""
    _change_sets(pending, jobs, job, True)
    _count_shapes(pending, jobs, job, 1)


@compiled
def leave(pending: PendingColumns, jobs: JobColumns, job: int) -> None:
    """Remove a job from the pending jobs."""
    _change_sets(pending, jobs, job, False)
    _count_shapes(pending, jobs, job, -1)


@compiled
def _change_sets(pending: PendingColumns, jobs: JobColumns, job: int, is_pending: bool) -> None:
    place, size = jobs.place[job], pending.sizes.of_job[job]
    if jobs.urgent[job]:
        _change(pending.urgent, place, is_pending)
    else:
        _change(pending.ranks, job, is_pending)
        _change(_ranks(pending.sizes, size), job, is_pending)
    _change(pending.places, place, is_pending)
    _change(_places(pending.sizes, size), place, is_pending)


@compiled
def _change(bits: BitSet, number: int, is_member: bool) -> None:
    if is_member:
        add(bits, number)
    else:
        remove(bits, number)


@compiled
def _ranks(sizes: SizeSets, index: int) -> BitSet:
    return BitSet(sizes.ranks_words[index], sizes.ranks_sums[index], sizes.ranks_counts[index])


@compiled
def _places(sizes: SizeSets, index: int) -> BitSet:
    return BitSet(sizes.places_words[index], sizes.places_sums[index], sizes.places_counts[index])


@compiled
def _count_shapes(pending: PendingColumns, jobs: JobColumns, job: int, change: int) -> None:
    for shape in range(jobs.first[job], jobs.last[job]):
        if jobs.possible[shape]:
            pending.shapes[jobs.hardware[shape], jobs.units[shape]] += change
    pending.tally[0] += change


@compiled
def may_fit(pending: PendingColumns, free: Ints) -> bool:
    """Return whether a shape of a pending job fits in the free units."""
    for kind in range(len(free)):
        for units in range(1, free[kind] + 1):
            if pending.shapes[kind, units] > 0:
                return True
    return False


@compiled
def moment(
    policy: PolicyRules,
    jobs: JobColumns,
    pending: PendingColumns,
    now_s: float,
    usage: Floats,
    least_usage: float,
) -> Moment:
    """Return what the scores of the pending jobs depend on now. At least one job is pending."""
    oldest_s = jobs.submit_s[jobs.by_place[following(pending.places, 0)]]
    middle, count = 0.0, pending.tally[0]
    if policy.code == BLEND:
        middle = jobs.key[member(pending.ranks, (count - 1) // 2)]
        if count % 2 == 0:
            middle = (middle + jobs.key[member(pending.ranks, count // 2)]) / 2.0
    return Moment(now_s, usage, least_usage, middle, max(0.0, now_s - oldest_s))


@compiled
def first_job(
    policy: PolicyRules,
    jobs: JobColumns,
    pending: PendingColumns,
    now: Moment,
    free: Ints,
    held: HeadReservation,
) -> tuple[int, int]:
    """Return the first pending job in the order of the policy, and its shape; (-1, -1): there is none."""
    aged = now.longest_wait_s >= policy.wait_bound_s
    place = following(pending.places, 0)
    while aged and place >= 0:
        job = jobs.by_place[place]
        if max(0.0, now.now_s - jobs.submit_s[job]) < policy.wait_bound_s:
            break
        _, shape = evaluate(policy, jobs, job, now.now_s, now.usage, now.middle)
        if shape >= 0:
            return job, shape
        place = following(pending.places, place + 1)
    best, best_shape = _urgent_job(policy, jobs, pending, now, free, held, False)
    if best >= 0:
        return best, best_shape
    best_score = np.inf
    job = following(pending.ranks, 0)
    while job >= 0:
        if least_score(policy, jobs.key[job], now.longest_wait_s, now.least_usage) > best_score:
            break
        if not aged or max(0.0, now.now_s - jobs.submit_s[job]) < policy.wait_bound_s:
            score, shape = evaluate(policy, jobs, job, now.now_s, now.usage, now.middle)
            if shape >= 0 and _is_better(jobs, job, score, best, best_score):
                best, best_shape, best_score = job, shape, score
        job = following(pending.ranks, job + 1)
    return best, best_shape


@compiled
def backfill_job(
    policy: PolicyRules,
    jobs: JobColumns,
    pending: PendingColumns,
    now: Moment,
    free: Ints,
    held: HeadReservation,
) -> tuple[int, int]:
    """Return the first pending job that fits now without delaying a reservation, and its shape.

    (-1, -1): there is none.
    """
    if now.longest_wait_s >= policy.wait_bound_s:
        job, shape = _aged_backfill_job(policy, jobs, pending, now, free, held)
        if job >= 0:
            return job, shape
    best, best_shape = _urgent_job(policy, jobs, pending, now, free, held, True)
    if best >= 0:
        return best, best_shape
    best_score = np.inf
    for index in range(len(pending.sizes.units)):
        if pending.sizes.units[index] > free[pending.sizes.kind[index]]:
            continue
        members = _ranks(pending.sizes, index)
        job = following(members, 0)
        while job >= 0:
            if least_score(policy, jobs.key[job], now.longest_wait_s, now.least_usage) > best_score:
                break
            score, shape = evaluate(policy, jobs, job, now.now_s, now.usage, now.middle)
            if (
                shape >= 0
                and _is_better(jobs, job, score, best, best_score)
                and _fits(jobs, job, shape, now.now_s, free, held)
            ):
                best, best_shape, best_score = job, shape, score
            job = following(members, job + 1)
    return best, best_shape


@compiled
def _urgent_job(
    policy: PolicyRules,
    jobs: JobColumns,
    pending: PendingColumns,
    now: Moment,
    free: Ints,
    held: HeadReservation,
    fitting: bool,
) -> tuple[int, int]:
    """Return the first of the jobs that come before others because of a deadline, and its shape.

    (-1, -1): there is none. If `fitting`, only jobs count that fit now without delaying a reservation.
    """
    best, best_shape, best_score = -1, -1, np.inf
    place = following(pending.urgent, 0)
    while place >= 0:
        job = jobs.by_place[place]
        place = following(pending.urgent, place + 1)
        score, shape = evaluate(policy, jobs, job, now.now_s, now.usage, now.middle)
        if (
            shape >= 0
            and _is_better(jobs, job, score, best, best_score)
            and (not fitting or _fits(jobs, job, shape, now.now_s, free, held))
        ):
            best, best_shape, best_score = job, shape, score
    return best, best_shape


@compiled
def _aged_backfill_job(
    policy: PolicyRules,
    jobs: JobColumns,
    pending: PendingColumns,
    now: Moment,
    free: Ints,
    held: HeadReservation,
) -> tuple[int, int]:
    """Return the result of `backfill_job` among the jobs that have waited longer than the bound."""
    least, least_shape = len(jobs.row), -1
    for index in range(len(pending.sizes.units)):
        if pending.sizes.units[index] > free[pending.sizes.kind[index]]:
            continue
        members = _places(pending.sizes, index)
        place = following(members, 0)
        while 0 <= place < least:
            job = jobs.by_place[place]
            if max(0.0, now.now_s - jobs.submit_s[job]) < policy.wait_bound_s:
                break
            _, shape = evaluate(policy, jobs, job, now.now_s, now.usage, now.middle)
            if shape >= 0 and _fits(jobs, job, shape, now.now_s, free, held):
                least, least_shape = place, shape
                break
            place = following(members, place + 1)
    return (-1, -1) if least_shape < 0 else (jobs.by_place[least], least_shape)


@compiled
def _is_better(jobs: JobColumns, job: int, score: float, best: int, best_score: float) -> bool:
    return best < 0 or score < best_score or (score == best_score and jobs.job_id[job] < jobs.job_id[best])


@compiled
def limit_s(jobs: JobColumns, job: int, shape: int) -> float:
    """Return the expected run time of a job in seconds: its time limit, else the predicted time."""
    limit = jobs.limit_s[job]
    return float(jobs.time_s[shape] if np.isnan(limit) else limit)


@compiled
def _fits(jobs: JobColumns, job: int, shape: int, now_s: float, free: Ints, held: HeadReservation) -> bool:
    kind, units = jobs.hardware[shape], jobs.units[shape]
    if units > free[kind]:
        return False
    if kind == held.kind and now_s + limit_s(jobs, job, shape) > held.start_s:
        return bool(units <= held.spare)
    return True


@compiled
def reserve(
    expected_s: Floats,
    expected_shape: Ints,
    running: int,
    jobs: JobColumns,
    shape: int,
    free: Ints,
    now_s: float,
) -> HeadReservation:
    """Return the reservation of a job that cannot start now in the shape that was chosen.

    Args:
        expected_s: expected ends of running jobs in seconds, ascending.
        expected_shape: their shapes.
        running: number of running jobs.
        jobs: the jobs.
        shape: the chosen shape.
        free: free units by kind of nodes.
        now_s: current time in seconds.
    """
    kind, need = jobs.hardware[shape], jobs.units[shape]
    units, start_s, index = free[kind], now_s, 0
    while index < running and (units < need or expected_s[index] <= now_s):
        if jobs.hardware[expected_shape[index]] == kind:
            units += jobs.units[expected_shape[index]]
            start_s = max(now_s, expected_s[index])
        index += 1
    while index < running and expected_s[index] <= start_s:
        if jobs.hardware[expected_shape[index]] == kind:
            units += jobs.units[expected_shape[index]]
        index += 1
    return HeadReservation(kind, start_s, units - need)
