"""Safety margin between the planned start and the latest permitted start of a deferred job.

Held jobs reserve no resources. If the demand of other jobs is high, the units (GPUs, cores or nodes)
that a job needs may not be free at its planned start. The margin is the time in which a full cluster
releases these units. It grows with the size of the job and with the load.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from slurm_energy.deferral.tables import Capacity, DeferralOptions, DeferralQueue
from slurm_energy.scheduling.queue import Floats

_MAX_RATIO: Final = 2.0
"""Maximum of a job's own margin, relative to the margin for unknown arrivals."""
_MARGIN_SHARE: Final = 0.75


def start_margins_s(queue: DeferralQueue, options: DeferralOptions) -> Floats:
    """Return the margin before each job's latest start, in seconds, shape (n,).

    A deferred job is started earlier than its latest start by this margin. The margin allows for waiting
    until enough units are free. A unit is a GPU, a core or a node. The margin of a job with u units is
    `release_s * max(0, u - (total - high_reserve))`, and at most twice `options.start_margin_s`. The terms
    are:

    - `total`: the highest number of free units over time;
    - `high_reserve`: the highest need of jobs that have not arrived yet;
    - `release_s`: the mean time until a full cluster releases one unit.

    If the capacity or the arrivals are unknown, the margin is `options.start_margin_s`. In every case the
    margin is at most three quarters of the slack, which is the time by which the start may be deferred.

    Args:
        queue: the pending jobs.
        options: parameters of the deferral policies.
    """
    if queue.slack_s is None:
        return np.zeros(queue.count)
    capacity = queue.capacity
    margin_s: Floats = np.full(queue.count, options.start_margin_s)
    if capacity is not None and capacity.high_reserve is not None and capacity.release_s is not None:
        own_s = np.minimum(_own_margins_s(queue, capacity), _MAX_RATIO * options.start_margin_s)
        margin_s = np.where(np.isnan(own_s), margin_s, own_s)
    bounded_s: Floats = np.minimum(margin_s, _MARGIN_SHARE * np.nan_to_num(queue.slack_s))
    return bounded_s


def _own_margins_s(queue: DeferralQueue, capacity: Capacity) -> Floats:
    assert capacity.high_reserve is not None and capacity.release_s is not None
    # The demand of the next slots is nearly certain. A margin from it would let a job slide from slot to slot
    # up to its latest start.
    left = np.max(capacity.units, axis=1) - np.max(capacity.high_reserve, axis=1)
    margin_s: Floats = capacity.release_s[queue.hardware] * np.maximum(
        queue.units - left[queue.hardware], 0.0
    )
    return margin_s
