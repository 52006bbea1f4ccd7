"""Comparison of two orders of the same jobs: Kendall's tau and number of moved jobs. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.priority.site_factors import longest_nonincreasing
from slurm_energy.scheduling.queue import Ints


@dataclass(frozen=True, slots=True)
class RankCorrelation:
    """Comparison of two orders of n jobs.

    Attributes:
        jobs: number of jobs, n.
        kendall_tau: 1 for equal orders, -1 for reversed orders, about 0 for unrelated orders; NaN for fewer
            than two jobs.
        moved_jobs: minimum number of jobs that must be moved to turn one order into the other.
    """

    jobs: int
    kendall_tau: float
    moved_jobs: int


def rank_correlation(place: Ints) -> RankCorrelation:
    """Return the rank correlation of two orders of the same jobs.

    Args:
        place: position of each job in the first order, shape (n,). The jobs are listed in the second order.
            All positions are different.
    """
    count = len(place)
    pairs = count * (count - 1) / 2
    tau = 1.0 - 2.0 * count_inversions(place) / pairs if pairs else float("nan")
    return RankCorrelation(count, tau, count - len(longest_nonincreasing(-place)))


def count_inversions(place: Ints) -> int:
    """Return the number of pairs in the wrong order: place[i] > place[j] for i < j.

    The cost is O(n log² n). The pairs are counted for each bit of the numbers. Numbers that agree in all
    higher bits are compared by the current bit: a number with bit 1 before a number with bit 0 is a pair in
    the wrong order.
    """
    rank = np.argsort(np.argsort(place, kind="stable"), kind="stable")
    total = 0
    for bit in range(max(1, len(place)).bit_length()):
        by_prefix = np.argsort(rank >> (bit + 1), kind="stable")
        sorted_rank = rank[by_prefix]
        prefix, one = sorted_rank >> (bit + 1), (sorted_rank >> bit) & 1
        ones_before = np.cumsum(one) - one
        first = np.flatnonzero(np.diff(prefix, prepend=-1))
        ones_in_group = ones_before - np.repeat(ones_before[first], np.diff(np.append(first, len(prefix))))
        total += int(np.sum(ones_in_group[one == 0]))
    return total
