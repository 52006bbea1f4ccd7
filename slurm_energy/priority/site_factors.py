"""Places in the queue as numbers for Slurm: from an order to site factors that fall from job to job. Pure.

Nothing about jobs, scores or Slurm's way of taking the numbers comes in here.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from slurm_energy.scheduling.queue import Ints

SPACING: Final = 1000
"""Distance of neighbours where there is room: newcomers go in between, and a nice of that much is a place."""

MIN_SITE_FACTOR: Final = 1_000_000
"""Of a ranked job: high enough that a usual nice does not take its priority down to Slurm's least, 1."""

MAX_SITE_FACTOR: Final = 2_000_000_000
"""Slurm adds its site factors to 2^31 in 32 bits without sign."""

EXACT_PLACES: Final = 100
"""Places at the head of the queue that are never left to chance."""

ORDER_TOLERANCE: Final = 0.1
"""By how much of its place a job further behind may stand elsewhere than the policy says."""

_CENTRE: Final = 1_000_000_000
_MIN_STEP: Final = 2


def spread_site_factors(count: int) -> Ints:
    """Return numbers for an order that nobody has numbers of yet, the highest first. Shape (count,).

    They lie around the middle of what Slurm takes, as newcomers go to either end.
    """
    spacing = min(SPACING, (MAX_SITE_FACTOR - MIN_SITE_FACTOR) // max(1, count))
    # Of the count only its size matters: the next cycle, with a few more jobs, gives the same numbers.
    top = min(MAX_SITE_FACTOR, _CENTRE + spacing * (1 << count.bit_length()) // 2)
    numbers: Ints = top - spacing * np.arange(count, dtype=np.int64)
    return numbers


def update_site_factors(old: Ints) -> Ints:
    """Return numbers for an order, with as few changes as it takes.

    The most jobs keep their numbers that can: a longest subsequence that falls with room for those in
    between. The others are spread evenly over the gaps. Where an end of the range is used up all get new
    numbers.

    Args:
        old: numbers that the jobs have now, first to start first; 0: none. Shape (n,).

    Returns:
        Strictly falling numbers from `LOWEST` to `HIGHEST`, shape (n,).
    """
    count = len(old)
    place = np.arange(count, dtype=np.int64)
    usable = (old >= MIN_SITE_FACTOR + (count - 1 - place)) & (old <= MAX_SITE_FACTOR - place)
    rows = np.flatnonzero(usable)
    # a stays before b with room for what is in between if old[a] + a >= old[b] + b.
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
    """Return an order in which jobs far from their turn stay as they stand among each other.

    The first `EXACT` places are as the policy says. Behind them come blocks of `COARSE` of their place, and
    within a block jobs keep the order of the numbers that they have: ageing and medians move jobs deep in a
    long queue all the time, and each move is a request to slurmctld.

    Args:
        old: numbers that the jobs have now, in the policy's order; 0: none. Shape (n,).

    Returns:
        Rows of `old`, shape (n,). Without numbers the policy's own order.
    """
    place = np.arange(len(old), dtype=np.int64)
    far = np.log(np.maximum(place, EXACT_PLACES) / EXACT_PLACES) / np.log1p(ORDER_TOLERANCE)
    block = np.where(place < EXACT_PLACES, place, EXACT_PLACES + far.astype(np.int64))
    rows: Ints = np.lexsort((place, -old, block))
    return rows


def longest_nonincreasing(values: Ints) -> Ints:
    """Return places of a longest subsequence in which no value is above the one before. O(n log n)."""
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
    found = np.empty(len(ends), np.int64)
    for place in range(len(ends) - 1, -1, -1):
        found[place] = row
        row = before[row]
    return found


def _crowded(at: Ints, numbers: Ints) -> bool:
    """Whether newcomers at an end stand so close that the next ones will find no room."""
    new = np.diff(at) - 1
    steps = -np.diff(numbers) // (new + 1)
    return bool((new[0] > 0 and steps[0] < _MIN_STEP) or (new[-1] > 0 and steps[-1] < _MIN_STEP))


def _interpolated(at: Ints, numbers: Ints) -> Ints:
    """Return the numbers of places 0 to at[-1] - 1, spread evenly between those given."""
    place = np.arange(at[-1], dtype=np.int64)
    left = np.searchsorted(at, place, side="right") - 1
    room = numbers[left] - numbers[left + 1]
    between = at[left + 1] - at[left]
    filled: Ints = numbers[left] - room * (place - at[left]) // between
    return filled
