"""Number of licenses that reservations withhold from jobs, so that jobs keep a power budget.

A job needs one license per watt. Slurm has as many licenses as the cluster's nameplate power has
watts. This total does not change. Reservations withhold licenses, so that the number of free licenses
equals the headroom (free power) of the budget.

One reservation without an end follows the headroom. Further reservations begin and end when the limit
of the budget changes. They prevent the scheduler from starting a job that would still run after a
reduction of the limit.

This module only computes numbers; it does not call Slurm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_STEPS: Final = 32
"""Maximum number of coming steps, each of which is a reservation."""


@dataclass(frozen=True, slots=True)
class WithheldPower:
    """Power that is withheld from jobs in a period.

    Attributes:
        start_unix_s: start of the period in Unix seconds.
        end_unix_s: end of the period in Unix seconds; None means no end.
        watts: withheld power in watts. It equals the number of licenses to withhold, one license per watt.
    """

    start_unix_s: int
    end_unix_s: int | None
    watts: int


def withheld_power(
    total_watts: int,
    used_watts: int,
    headroom_watts: float,
    limit_watts: float,
    steps: Sequence[tuple[float, float]],
    now_unix_s: float,
    offered_watts: float = math.inf,
    idle_watts: float = 0.0,
) -> list[WithheldPower]:
    """Return the power that license reservations must withhold from jobs, now and in the future.

    One license stands for one watt. Licenses that are neither used nor withheld are free for new jobs.
    The number of free licenses must equal the headroom, which is the power that new jobs may add. The
    power to withhold now is therefore `total_watts` minus `used_watts` minus `headroom_watts`. If
    `offered_watts` is less than the headroom, only `offered_watts` licenses remain free. When the limit
    changes in the future, the power to withhold changes by the difference between the old and the new
    limit. If there is no limit now, only the new limit minus `idle_watts` remains free, and all other
    licenses are withheld. The power to withhold is at most `total_watts`.

    The first entry of the result has no end. Its power is the smallest power that must be withheld at any
    time. Each further entry adds the rest that must be withheld in one period. The periods do not overlap.
    Slurm's times are whole seconds. A change within a second therefore counts from the start of this second.

    Args:
        total_watts: total of the license.
        used_watts: sum of the counts of jobs that hold the license.
        headroom_watts: power that new jobs may add now.
        limit_watts: present limit.
        steps: pairs (Unix seconds, limit in watts) of the future changes, in ascending order.
        now_unix_s: present Unix time.
        offered_watts: power that new jobs may take now, even if the headroom is larger.
        idle_watts: power under the budget without any job.
    """
    if math.isinf(headroom_watts) and headroom_watts > 0:
        free = float(total_watts - used_watts)
    else:
        free = max(0.0, headroom_watts)
    # Rounding up withholds at most one watt too much.
    now_watts = min(max(math.ceil(total_watts - used_watts - free), 0), total_watts)
    offered = min(free, max(0.0, offered_watts))
    periods = [(now_unix_s, min(max(math.ceil(total_watts - used_watts - offered), 0), total_watts))]
    for at, watts in _merged([step for step in steps if step[0] > now_unix_s], MAX_STEPS):
        if math.isfinite(limit_watts):
            withheld = now_watts + (limit_watts - watts if math.isfinite(watts) else 0.0)
        else:
            withheld = max(0.0, total_watts - max(0.0, watts - idle_watts))
        periods.append((at, min(max(math.ceil(withheld), 0), total_watts)))
    base = min(watts for _, watts in periods)
    entries = [WithheldPower(int(now_unix_s), None, base)]
    starts = [math.floor(start) for start, _ in periods]
    for start, end, (_, watts) in zip(starts, [*starts[1:], None], periods, strict=True):
        if watts > base and start != end:
            entries.append(WithheldPower(start, end, watts - base))
    return entries


def _merged(steps: Sequence[tuple[float, float]], max_count: int) -> list[tuple[float, float]]:
    """Shorten a list of limit changes (start, watts) to at most `max_count` entries.

    Neighbouring entries are merged in pairs. A merged entry has the lower limit of the pair.
    """
    merged = list(steps)
    while len(merged) > max_count:
        pairs = [merged[at : at + 2] for at in range(0, len(merged), 2)]
        merged = [(pair[0][0], min(watts for _, watts in pair)) for pair in pairs]
    return merged
