"""Site factors, which make Slurm start the jobs in the order of the ranked queue.

A site factor is an integer that Slurm adds to the priority of a job. The site factors decrease from each
place in the queue to the next. The module knows nothing of jobs and scores, and does not transmit the
factors to Slurm. All functions are pure.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from slurm_energy.scheduling.queue import Ints

SPACING: Final = 1000
"""Difference between the factors of neighbours if there is room. New jobs fit in between, and a nice value of
this size moves a job by one place.
"""

MIN_SITE_FACTOR: Final = 1_000_000
"""Minimum site factor of a ranked job. It is so high that a usual nice value does not reduce the job's
priority to Slurm's minimum, 1.
"""

MAX_SITE_FACTOR: Final = 2_000_000_000
"""Maximum site factor. Slurm adds site factors to 2^31 in unsigned 32 bits."""

EXACT_PLACES: Final = 100
"""Places at the head of the queue that always follow the policy exactly."""

ORDER_TOLERANCE: Final = 0.1
"""Maximum deviation from the policy's order of jobs further behind, as a fraction of the job's place."""

_CENTRE: Final = 1_000_000_000
_MIN_STEP: Final = 2


def spread_site_factors(count: int) -> Ints:
    """Return descending site factors for `count` jobs that have none yet, shape (count,).

    Slurm adds the site factor to the priority of a job. The factors lie around the middle of Slurm's range,
    because new jobs may have to go to either end of the queue.
    """
    spacing = min(SPACING, (MAX_SITE_FACTOR - MIN_SITE_FACTOR) // max(1, count))
    # Only the order of magnitude of the count matters: a few more jobs in the next cycle change nothing.
    top = min(MAX_SITE_FACTOR, _CENTRE + spacing * (1 << count.bit_length()) // 2)
    numbers: Ints = top - spacing * np.arange(count, dtype=np.int64)
    return numbers


def update_site_factors(old: Ints) -> Ints:
    """Return site factors (terms of Slurm's priority) for a new order of jobs.

    As few of the current factors as possible change. Some jobs keep their factors: a longest decreasing
    subsequence of the factors that leaves room for the jobs between them. The factors of the other jobs are
    spread evenly over the gaps. If there is no room left at one end of the range of factors, all jobs get
    new factors.

    Args:
        old: current factors of the jobs in the new order, shape (n,); 0 means that the job has no factor.

    Returns:
        Strictly decreasing factors from `MAX_SITE_FACTOR` down to `MIN_SITE_FACTOR`, shape (n,).
    """
    count = len(old)
    place = np.arange(count, dtype=np.int64)
    usable = (old >= MIN_SITE_FACTOR + (count - 1 - place)) & (old <= MAX_SITE_FACTOR - place)
    rows = np.flatnonzero(usable)
    # a stays before b with room for the jobs between them if old[a] + a >= old[b] + b.
    stays = rows[longest_nonincreasing(old[rows] + rows)]
    if len(stays) == 0:
        return spread_site_factors(count)
    first, last = int(stays[0]), int(stays[-1])
    above = min(MAX_SITE_FACTOR + 1, int(old[first]) + SPACING * (first + 1))
    below = max(MIN_SITE_FACTOR - 1, int(old[last]) - SPACING * (count - last))
    at = np.concatenate(([-1], stays, [count]))
    numbers = np.concatenate(([above], old[stays], [below]))
    if _crowded(at, numbers):
        return spread_site_factors(count)
    return _interpolated(at, numbers)


def stable_order(old: Ints) -> Ints:
    """Return an order of the queue that needs few changes of jobs far behind its head.

    Each move of a job costs a request to slurmctld, which sets the site factor (priority term) of the job.
    Under the policy's exact order, jobs deep in a long queue would move constantly, because jobs age and
    because scores depend on medians over the queue.

    The first `EXACT_PLACES` places follow the policy. The places behind them are split into blocks. The size
    of a block is the fraction `ORDER_TOLERANCE` of the place at which the block begins. Within a block, jobs
    stay in the order of their current site factors.

    Args:
        old: current site factors of the jobs in the policy's order, shape (n,); 0 means that the job has no
            site factor.

    Returns:
        Indices into `old`, shape (n,). If no job has a site factor, this is the policy's own order.
    """
    place = np.arange(len(old), dtype=np.int64)
    far = np.log(np.maximum(place, EXACT_PLACES) / EXACT_PLACES) / np.log1p(ORDER_TOLERANCE)
    block = np.where(place < EXACT_PLACES, place, EXACT_PLACES + far.astype(np.int64))
    rows: Ints = np.lexsort((place, -old, block))
    return rows


def longest_nonincreasing(values: Ints) -> Ints:
    """Return the indices of a longest subsequence in which no value exceeds the previous one. O(n log n)."""
    if len(values) == 0 or np.all(np.diff(values) <= 0):
        return np.arange(len(values), dtype=np.int64)
    ends: list[int] = []  # negated last values of the best subsequence of each length
    end_rows: list[int] = []
    before = [-1] * len(values)
    for row, value in enumerate((-values).tolist()):
        length = bisect_right(ends, value)
        if length:
            before[row] = end_rows[length - 1]
        if length == len(ends):
            ends.append(value)
            end_rows.append(row)
        else:
            ends[length], end_rows[length] = value, row
    row = end_rows[-1]
    subsequence = np.empty(len(ends), np.int64)
    for index in range(len(ends) - 1, -1, -1):
        subsequence[index] = row
        row = before[row]
    return subsequence


def _crowded(at: Ints, numbers: Ints) -> bool:
    """Return whether the site factors of neighbouring new jobs lie too close together.

    If they do, later jobs can hardly be inserted between these jobs. A site factor is an integer that Slurm
    adds to the priority of a job. Only the new jobs at the start and at the end of the order are checked.
    """
    new = np.diff(at) - 1
    steps = -np.diff(numbers) // (new + 1)
    return bool((new[0] > 0 and steps[0] < _MIN_STEP) or (new[-1] > 0 and steps[-1] < _MIN_STEP))


def _interpolated(at: Ints, numbers: Ints) -> Ints:
    """Return the site factors (priority terms) of the first places of the queue by interpolation.

    The result is for the places 0 to at[-1] - 1.

    Args:
        at: places whose site factors are known, in ascending order.
        numbers: site factors of these places.
    """
    place = np.arange(at[-1], dtype=np.int64)
    left = np.searchsorted(at, place, side="right") - 1
    room = numbers[left] - numbers[left + 1]
    between = at[left + 1] - at[left]
    filled: Ints = numbers[left] - room * (place - at[left]) // between
    return filled
