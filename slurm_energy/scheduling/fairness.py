"""Computation of fair shares from the usage of users, which decays with time.

The module also computes fair-share factors and Jain's index. All functions are pure.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Floats, Users


def decayed(usage: Floats, elapsed_s: float, half_life_s: float) -> Floats:
    """Return the users' usage after exponential decay, as with Slurm's PriorityDecayHalfLife.

    Args:
        usage: usage in any unit, shape (u,).
        elapsed_s: seconds of decay.
        half_life_s: seconds in which usage halves; infinity means no decay.

    Raises:
        ValueError: the half life is not positive.
    """
    if not half_life_s > 0:
        raise ValueError("half_life_s must be positive")
    faded: Floats = usage * 2.0 ** (-elapsed_s / half_life_s)
    return faded


def usage_to_share_ratio(usage: Floats, users: Users) -> Floats:
    """Return usage divided by fair share for each user, shape (u,).

    Shares are scaled to a mean of 1. If all shares are equal, the ratio therefore equals the usage.

    Args:
        usage: usage in any unit, shape (u,).
        users: table of the users, with their shares.
    """
    if len(users.share) == 0:
        return usage
    share = users.share / np.mean(users.share)
    ratio: Floats = usage / share
    return ratio


def fair_share_factor(usage: Floats, users: Users) -> Floats:
    """Return the fair-share factor 2^(-U/S) of each user, between 0 and 1; an array (users,).

    U is the user's fraction of the usage of all users. S is the user's fraction of all configured shares. A
    user without usage has the factor 1. A user with U = S has the factor 0.5. Source: Slurm,
    priority_multifactor, the classic fair-share formula.
    """
    total = float(np.sum(usage))
    if total <= 0:
        return np.ones(len(usage))
    share = users.share / np.sum(users.share)
    factor: Floats = 2.0 ** (-(usage / total) / share)
    return factor


def jain(values: Floats) -> float:
    """Return Jain's fairness index (sum x)^2 / (n sum x^2).

    The index is 1 if all values are equal, and 1/n if all but one are 0. Return NaN without values,
    and 1 if all values are 0. Source: Jain, Chiu, Hawe 1984, DEC-TR-301.
    """
    if len(values) == 0:
        return float("nan")
    largest = float(np.max(np.abs(values)))
    if largest == 0:
        return 1.0
    scaled = np.asarray(values, np.float64) / largest
    return float(np.square(np.sum(scaled)) / (len(scaled) * np.sum(np.square(scaled))))
