"""Compiled functions of the fast simulator that update how much each user has used.

Older usage counts less (it decays).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.kernels.compiled import compiled

_LN2: Final = math.log(2)


class UserColumns(NamedTuple):
    """Usage of u users, as in `RunningJobs`. There are no users if the policy ignores usage.

    A unit is a GPU, a core or a node.

    Attributes:
        share: fair share of each user, scaled for the policy, shape (u,).
        units, watts: units and power of the user's running jobs, shape (u,).
        unit_s, joules: decayed usage of each user: units times seconds, and energy. Shape (u,).
        factor: factor by which each user's usage enters scores, shape (u,).
        settled_s: time up to which usage is counted, in seconds, shape (1,).
        half_life_s: half life of usage, shape (1,).
    """

    share: Floats
    units: Floats
    watts: Floats
    unit_s: Floats
    joules: Floats
    factor: Floats
    settled_s: Floats
    half_life_s: Floats


def no_usage(share: Floats, half_life_s: float) -> UserColumns:
    """Return the simulator's table of users before any user has used anything."""
    units, watts, unit_s, joules, factor = (np.zeros(len(share)) for _ in range(5))
    return UserColumns(share, units, watts, unit_s, joules, factor, np.zeros(1), np.array([half_life_s]))


@compiled
def settle(users: UserColumns, now_s: float) -> None:
    """Update the usage of every user to the time `now_s`. Older usage counts less."""
    elapsed_s = now_s - users.settled_s[0]
    if len(users.share) == 0 or elapsed_s <= 0:
        return
    remaining, gained_s = 1.0, elapsed_s
    half_life_s = users.half_life_s[0]
    if not np.isinf(half_life_s):
        remaining = 2.0 ** (-elapsed_s / half_life_s)
        gained_s = (1.0 - remaining) * half_life_s / _LN2
    for user in range(len(users.share)):
        users.unit_s[user] = users.unit_s[user] * remaining + users.units[user] * gained_s
        users.joules[user] = users.joules[user] * remaining + users.watts[user] * gained_s
    users.settled_s[0] = now_s


@compiled
def hold(users: UserColumns, user: int, units: int, watts: float) -> None:
    """Add the units and the power of a starting job to the present totals of the job's user.

    For a job that ends, pass negative values. Call `settle` before. That function adds what the user has
    consumed with the old totals to the user's past usage.
    """
    if len(users.share) > 0:
        users.units[user] += units
        users.watts[user] += watts
