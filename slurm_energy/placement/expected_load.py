"""Expected load of a cluster: the number of free units (CPUs, GPUs or nodes) over time.

The load includes jobs that run or wait on the cluster, and jobs that were just placed there. Each job starts
as early as possible without delaying the jobs before it (conservative backfill). Slurm may start a job
earlier, because other jobs may end before their time limits.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class ExpectedLoad:
    """Free units of one cluster as a step function of time. The last step has no end.

    Args:
        units: number of all units (CPUs, GPUs or nodes) of the cluster.
        now_s: current time in seconds.
        running: expected end in seconds, and number of units, of each running job.
    """

    def __init__(self, units: float, now_s: float, running: Iterable[tuple[float, float]] = ()) -> None:
        self.units = units
        self._times, self._free = [now_s], [units]
        for end_s, count in running:
            self.add(count, now_s, max(0.0, end_s - now_s))

    def copy(self) -> ExpectedLoad:
        """Return an independent copy."""
        new = ExpectedLoad(self.units, 0.0)
        new._times, new._free = self._times.copy(), self._free.copy()
        return new

    def earliest_start_s(self, units: float, run_s: float, from_s: float) -> float:
        """Return the earliest start of a job at or after `from_s`; infinity if the cluster is too small."""
        if units > self.units:
            return math.inf
        start_s, at = from_s, bisect_right(self._times, from_s) - 1
        at = max(0, at)
        start_s = max(start_s, self._times[0])
        step = at
        while step < len(self._times) and self._times[step] < start_s + run_s:
            if self._free[step] < units:
                step += 1
                if step == len(self._times):
                    return math.inf  # jobs without an end fill the cluster
                start_s = self._times[step]
                continue
            step += 1
        return start_s

    def add(self, units: float, start_s: float, run_s: float) -> None:
        """Add a job to the expected load of a cluster.

        The method subtracts `units` from the number of free GPUs or CPUs, for `run_s` seconds from `start_s`
        on. The number of free units becomes negative if too many units are subtracted.
        """
        if run_s <= 0:
            return
        first = self._split(max(start_s, self._times[0]))
        last = len(self._times) if math.isinf(run_s) else self._split(start_s + run_s)
        for step in range(first, last):
            self._free[step] -= units

    def advance(self, now_s: float) -> None:
        """Discard the expected load before `now_s`, which later placements no longer need.

        The first remaining step of the load then begins at `now_s`.
        """
        at = bisect_right(self._times, now_s) - 1
        if at > 0:
            del self._times[:at], self._free[:at]
        self._times[0] = max(self._times[0], now_s)

    def _split(self, time_s: float) -> int:
        at = bisect_left(self._times, time_s)
        if at < len(self._times) and self._times[at] == time_s:
            return at
        self._times.insert(at, time_s)
        self._free.insert(at, self._free[at - 1])
        return at
