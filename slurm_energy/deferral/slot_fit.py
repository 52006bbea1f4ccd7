"""Free units over time slots, in which jobs are placed one after the other."""

from __future__ import annotations

import numpy as np

from slurm_energy.deferral.tables import Capacity
from slurm_energy.scheduling.queue import Floats, Ints

_SLACK = 1e-6


class SlotFit:
    """Resources of each slot that are not yet taken.

    Slot i covers the time from start i to start i + 1. The last slot describes all later times.

    Args:
        starts_s: starts of the slots, ascending, shape (s,).
        capacity: free units and watts over time; None: unlimited.
    """

    def __init__(self, starts_s: Floats, capacity: Capacity | None) -> None:
        self._starts_s = starts_s
        self.limited = capacity is not None
        self.free = np.zeros((0, len(starts_s)))
        if capacity is not None:
            tables = capacity.units if capacity.watts is None else np.vstack([capacity.units, capacity.watts])
            self.free = _by_slot(tables, capacity, starts_s)
        self.has_watts = capacity is not None and capacity.watts is not None

    def spans(self, rows: Ints, time_s: Floats) -> tuple[Ints, Ints]:
        """Return the first slot and the slot after the last of jobs that start in the slots `rows`."""
        after = np.searchsorted(self._starts_s, self._starts_s[rows] + time_s - _SLACK, side="left")
        return rows, np.maximum(after, rows + 1)

    def fits_all(self, rows: Ints, time_s: Floats, kinds: Ints, units: Floats, watts: Floats) -> bool:
        """Return whether all jobs fit together, started in the slots `rows`; take nothing."""
        used = np.zeros((self.free.shape[0], self.free.shape[1] + 1))
        first, after = self.spans(rows, time_s)
        np.add.at(used, (kinds, first), units)
        np.add.at(used, (kinds, after), -units)
        if self.has_watts:
            np.add.at(used[-1], first, watts)
            np.add.at(used[-1], after, -watts)
        return bool(np.all(np.cumsum(used, axis=1)[:, :-1] <= self.free + _SLACK))

    def fits(self, row: int, after: int, kind: int, units: float, watts: float) -> bool:
        """Return whether a job fits in the slots from `row` up to, not including, `after`."""
        if self.free[kind, row:after].min() + _SLACK < units:
            return False
        return not self.has_watts or bool(self.free[-1, row:after].min() + _SLACK >= watts)

    def take(self, row: int, after: int, kind: int, units: float, watts: float) -> None:
        """Take the resources of a job in the slots from `row` up to, not including, `after`."""
        self.free[kind, row:after] -= units
        if self.has_watts:
            self.free[-1, row:after] -= watts

    def possible(self, afters: Ints, kind: int, units: float, watts: float) -> np.ndarray:
        """Return whether a job fits from each start up to the slot `afters[start]`, shape (starts,)."""
        full = self.free[kind] + _SLACK < units
        if self.has_watts:
            full |= self.free[-1] + _SLACK < watts
        blocked = np.concatenate([[0], np.cumsum(full)])
        starts = np.arange(len(afters))
        result: np.ndarray = blocked[afters] == blocked[starts]
        return result


def _by_slot(tables: Floats, capacity: Capacity, starts_s: Floats) -> Floats:
    """Return the minimum of each resource in each planned slot, shape (resources, s)."""
    steps = tables.shape[1]
    first = np.floor((starts_s - capacity.start_s) / capacity.step_s + 1e-9).astype(np.int64)
    after = np.ceil((np.append(starts_s[1:], np.inf) - capacity.start_s) / capacity.step_s - 1e-9)
    last = np.minimum(after, steps).astype(np.int64) - 1
    first = np.clip(first, 0, steps - 1)
    free = tables[:, first].astype(np.float64)
    for extra in range(1, int(np.max(last - first, initial=0)) + 1):
        free = np.minimum(free, tables[:, np.minimum(first + extra, np.maximum(last, first))])
    return free
