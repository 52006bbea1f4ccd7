"""Plan of the starts of pending jobs, based on the expected ends of running jobs.

Jobs are placed one after another. Each job is placed at the earliest time at which enough units (such as
GPUs) of a kind of hardware are free. Units may be idle until the start of a job that was placed earlier.
Another job may use these idle units only if it ends before that start.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints, UnitCapacity


class UnitPlan:
    """Plan of the starts of pending jobs on one kind of hardware.

    The plan stores the times from which units are free, and the gaps before planned starts.

    Args:
        capacity: free units and running jobs.
        kind: index of the kind of hardware.
        now_s: current time in seconds.
    """

    def __init__(self, capacity: UnitCapacity, kind: int, now_s: float) -> None:
        free = int(capacity.free[kind])
        held = capacity.hardware == kind
        end_s = capacity.end_s[held]
        # A job that has exceeded its expected end is expected to run for the excess time once more.
        end_s = np.where(end_s > now_s, end_s, np.maximum(2 * now_s - end_s, np.nextafter(now_s, np.inf)))
        ends = np.repeat(end_s, capacity.gpus[held])
        self._now_s = now_s
        self._known = free >= 0
        self._free_s: Floats = np.sort(np.concatenate([np.full(max(0, free), now_s), ends]))
        self._gaps: list[tuple[float, int]] = []

    def starts_s(self, gpus: Ints, time_s: Floats) -> Floats:
        """Return the earliest start of a job on each of s shapes (allocations that the job can use).

        The result is infinity for a shape that needs more units than the cluster has.

        Args:
            gpus: units that each shape needs, shape (s,).
            time_s: run time of each shape in seconds, shape (s,).
        """
        if not self._known:
            return np.full(len(gpus), self._now_s)
        units = len(self._free_s)
        if units == 0:
            return np.full(len(gpus), np.inf)
        start_s = np.where(gpus <= units, self._free_s[np.minimum(gpus, units) - 1], np.inf)
        if self._gaps:
            free = int(np.searchsorted(self._free_s, self._now_s, "right"))
            until_s, counts = (np.array(column) for column in zip(*self._gaps, strict=True))
            in_gaps = (until_s >= (self._now_s + time_s)[:, None]) @ counts
            start_s = np.where(gpus <= free + in_gaps, self._now_s, start_s)
        return start_s

    def take(self, start_s: float, gpus: int, time_s: float) -> None:
        """Give `gpus` units to a job that starts at `start_s` and lasts `time_s` seconds.

        `start_s` is a result of `starts_s`.

        Of the units that are free at `start_s`, those that become free last are taken. In this way the fewest
        units are idle until the start.
        """
        if not self._known:
            return
        last = int(np.searchsorted(self._free_s, start_s, "right"))
        from_gaps = max(0, gpus - last)
        if from_gaps:
            self._use_gaps(from_gaps, start_s + time_s)
        taken = slice(last - gpus + from_gaps, last)
        waiting = int(np.count_nonzero(self._free_s[taken] <= self._now_s))
        if start_s > self._now_s and waiting:
            self._gaps.append((start_s, waiting))
        self._free_s[taken] = start_s + time_s
        self._free_s.sort()

    def _use_gaps(self, count: int, end_s: float) -> None:
        """Reserve units for a job in gaps of the plan. A unit is a GPU, a core or a node.

        A gap is a group of units that are free from now until the start of a planned job. Only gaps that
        last at least until `end_s` are used. The shortest of these gaps are used first.
        """
        left: list[tuple[float, int]] = []
        for until_s, units in sorted(self._gaps):
            used = min(count, units) if until_s >= end_s else 0
            count -= used
            if units > used:
                left.append((until_s, units - used))
        self._gaps = left


def plans(capacity: UnitCapacity, now_s: float) -> list[UnitPlan]:
    """Return one empty plan of job starts for each kind of hardware."""
    return [UnitPlan(capacity, kind, now_s) for kind in range(len(capacity.free))]
