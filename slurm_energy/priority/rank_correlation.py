"""How far two orders of the same jobs agree: for the comparison with Slurm's own order. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.priority.site_factors import longest_nonincreasing
from slurm_energy.scheduling.queue import Ints


@dataclass(frozen=True, slots=True)
class RankCorrelation:
    """Two orders of n jobs, compared.

    Attributes:
        jobs: n.
        kendall_tau: 1: the same order, -1: the reverse, about 0: nothing to do with each other; NaN with
            less than two jobs.
        moved: fewest jobs that must be moved to make one order of the other.
    """

    jobs: int
    kendall_tau: float
    moved_jobs: int


def rank_correlation(place: Ints) -> RankCorrelation:
    """Compare an order with another one.

    Args:
        place: the place of each job in one order, the jobs standing in the other. Shape (n,), all different.
    """
    count = len(place)
    pairs = count * (count - 1) / 2
    tau = 1.0 - 2.0 * count_inversions(place) / pairs if pairs else float("nan")
    return RankCorrelation(count, tau, count - len(longest_nonincreasing(-place)))


def count_inversions(place: Ints) -> int:
    """Return how many pairs stand the wrong way round: place[i] > place[j] for i < j. O(n log² n).

    Bit by bit: among numbers that agree in all higher bits a pair is wrong where a 1 comes before a 0.
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
