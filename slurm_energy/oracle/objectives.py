"""Objectives by which the possible ways to run a job are ranked.

The objectives are the energy-delay product, the energy-delay sum and the Pareto front. All functions are
pure.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import UsageError

Array = NDArray[np.float64]
OBJECTIVES = ("time", "energy", "edp", "eds")


def edp_js(duration_s: Array, energy_joules: Array) -> Array:
    """Return the energy-delay product of each possible choice for a job, in joule seconds.

    Args:
        duration_s: run time of each choice.
        energy_joules: energy of each choice.
    """
    return energy_joules * duration_s


def eds(
    duration_s: Array, energy_joules: Array, reference_s: float, reference_joules: float, k: float
) -> Array:
    """Return the energy-delay sum of each alternative (way to run a job); lower is better.

    The energy-delay sum of the reference job is 1.

    Args:
        duration_s: seconds of the alternatives.
        energy_joules: joules of the alternatives.
        reference_s: seconds of the reference job, usually the same job without a power limit.
        reference_joules: joules of the reference job.
        k: weight of time, above 1. A job that used no energy and ran k times as long as the reference job
            would be as good as the reference job.

    Source: power-capping, section 3: alpha E + beta t with alpha = (k - 1) / (k E_ref), beta = 1 / (k
    t_ref).
    """
    if not k > 1:
        raise UsageError("k of EDS", f"{k} is not above 1", "usual are 1.5 and 2")
    return (k - 1) / k * energy_joules / reference_joules + duration_s / reference_s / k


def pareto_front(duration_s: Array, energy_joules: Array) -> NDArray[np.bool_]:
    """Return a mask of the alternatives that no other alternative dominates, shape (n,).

    Alternative A dominates alternative B if A is better in time or energy, and not worse in the other
    quantity.
    """
    order = np.lexsort((energy_joules, duration_s))
    lowest_joules = np.minimum.accumulate(energy_joules[order])
    before = np.concatenate(([np.inf], lowest_joules[:-1]))
    first = np.concatenate(([True], duration_s[order][1:] > duration_s[order][:-1]))
    front = np.zeros(len(order), dtype=bool)
    ahead = energy_joules[order] < before
    front[order] = ahead
    twins = np.flatnonzero(
        ~ahead & ~first
    )  # an alternative with the time and energy of its predecessor is equally good
    for position in twins:
        here, there = order[position], order[position - 1]
        front[here] = front[there] and energy_joules[here] == energy_joules[there]
    return front


def first_minimum(values: Array, tolerance: float = 0.0) -> int:
    """Return the index of the first value that exceeds the minimum by no more than a relative tolerance.

    Args:
        values: positive values, at least one.
        tolerance: permitted excess as a share of the minimum (0.02: 2 %).
    """
    return int(np.flatnonzero(values <= values.min() * (1.0 + tolerance))[0])
