"""Table of the resources that are free in each time slot.

Deferred jobs are placed in the slots one after another.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slurm_energy.deferral.tables import Capacity, DeferralQueue
from slurm_energy.scheduling.queue import Floats, Ints

_SLACK = 1e-6


class SlotFit:
    """Table of the resources that are free in each time slot.

    The resources are units (for example GPUs) and watts. Jobs whose start is planned take resources from the
    slots. A slot lasts from its start to the start of the next slot. The last slot has no end.

    Args:
        starts_s: starts of the slots, ascending, shape (s,).
        capacity: free units and watts over time; None means unlimited.
    """

    def __init__(self, starts_s: Floats, capacity: Capacity | None) -> None:
        self._starts_s = starts_s
        self.limited = capacity is not None
        self.free = np.zeros((0, len(starts_s)))
        if capacity is not None:
            tables = capacity.units if capacity.watts is None else np.vstack([capacity.units, capacity.watts])
            self.free = by_slot(tables, capacity, starts_s)
        self.has_watts = capacity is not None and capacity.watts is not None
        # Nothing is reserved in slot 0: jobs that start now start before later arrivals.
        self._reserve = np.zeros_like(self.free)
        if capacity is not None and capacity.reserve is not None:
            kinds = len(capacity.reserve)
            self._reserve[:kinds, 1:] = by_slot(capacity.reserve, capacity, starts_s, np.maximum)[:, 1:]

    @property
    def free_for_deferred(self) -> Floats:
        """Free resources of each time slot that deferred jobs may use, shape (resources, s).

        A reserve for jobs that arrive later is subtracted.
        """
        return self.free - self._reserve if np.any(self._reserve) else self.free

    def spans(self, rows: Ints, time_s: Floats) -> tuple[Ints, Ints]:
        """Return the time slots that jobs occupy.

        Job i starts in the slot `rows[i]` and runs for `time_s[i]` seconds. The result has the first slot of
        each job, and the first slot after the end of each job.
        """
        after = np.searchsorted(self._starts_s, self._starts_s[rows] + time_s - _SLACK, side="left")
        return rows, np.maximum(after, rows + 1)

    def fits_all(self, rows: Ints, time_s: Floats, kinds: Ints, units: Floats, watts: Floats) -> bool:
        """Return whether all given jobs fit together if they start in the time slots `rows`.

        The function only checks. It does not reserve resources of the slots for the jobs.
        """
        used = np.zeros((self.free.shape[0], self.free.shape[1] + 1))
        first, after = self.spans(rows, time_s)
        np.add.at(used, (kinds, first), units)
        np.add.at(used, (kinds, after), -units)
        if self.has_watts:
            np.add.at(used[-1], first, watts)
            np.add.at(used[-1], after, -watts)
        return bool(np.all(np.cumsum(used, axis=1)[:, :-1] <= self.free_for_deferred + _SLACK))

    def fits(
        self, row: int, after: int, kind: int, units: float, watts: float, *, urgent: bool = False
    ) -> bool:
        """Return whether a job fits in the time slots from `row` up to, not including, `after`.

        Some units (such as GPUs) are reserved for jobs that have not been submitted yet. An urgent job, or a
        job that starts now (in slot 0), may use these units as well.
        """
        left = self.free[kind, row:after]
        if row and not urgent:
            left = left - self._reserve[kind, row:after]
        if left.min() + _SLACK < units:
            return False
        return not self.has_watts or bool(self.free[-1, row:after].min() + _SLACK >= watts)

    def take(self, row: int, after: int, kind: int, units: float, watts: float) -> None:
        """Reserve the resources of a job from the slot `row` up to the slot before `after`."""
        self.free[kind, row:after] -= units
        if self.has_watts:
            self.free[-1, row:after] -= watts

    def possible(
        self, afters: Ints, kind: int, units: float, watts: float, *, urgent: bool = False
    ) -> np.ndarray:
        """Return for each possible start whether the free resources suffice for a job.

        The job needs the resources from its start up to the slot `afters[start]`. The result has the shape
        (starts,).

        Args:
            afters: for each start, the slot after the job's last slot.
            kind: index of the job's kind of hardware.
            units: number of units (GPUs, nodes or cores) that the job needs.
            watts: power that the job needs.
            urgent: whether the job may use the resources that are kept free for jobs that have not arrived
                yet.
        """
        left = self.free[kind] if urgent else self.free_for_deferred[kind]
        full = left + _SLACK < units
        if self.has_watts:
            full |= self.free[-1] + _SLACK < watts
        blocked = np.concatenate([[0], np.cumsum(full)])
        result: np.ndarray = blocked[afters] == blocked[np.arange(len(afters))]
        if len(result):
            result[0] = self.fits(0, int(afters[0]), kind, units, watts)
        return result


def by_slot(
    tables: Floats,
    capacity: Capacity,
    starts_s: Floats,
    extreme: Callable[[Floats, Floats], Floats] = np.minimum,
) -> Floats:
    """Return the minimum of each resource in each slot of a plan, shape (resources, s).

    The function `extreme` may select another extreme, such as the maximum. A slot of the plan may cover
    several time steps of `tables`.

    Args:
        tables: value of each resource in each step of `capacity`.
        capacity: start and length of the steps.
        starts_s: start of each of the s slots.
        extreme: function that returns the elementwise extreme of two arrays.
    """
    steps = tables.shape[1]
    first = np.floor((starts_s - capacity.start_s) / capacity.step_s + 1e-9).astype(np.int64)
    after = np.ceil((np.append(starts_s[1:], np.inf) - capacity.start_s) / capacity.step_s - 1e-9)
    last = np.minimum(after, steps).astype(np.int64) - 1
    first = np.clip(first, 0, steps - 1)
    free = tables[:, first].astype(np.float64)
    for extra in range(1, int(np.max(last - first, initial=0)) + 1):
        free = extreme(free, tables[:, np.minimum(first + extra, np.maximum(last, first))])
    return free


def reserve_urgent(queue: DeferralQueue, starts_s: Floats, fit: SlotFit) -> None:
    """Reserve the resources of the jobs that may not be deferred, before other jobs are placed.

    Each of these jobs gets the first time slot that has room for it.
    """
    if not fit.limited:
        return
    urgent = np.flatnonzero(~queue.deferrable)
    starts = np.arange(len(starts_s))
    for job in urgent.tolist():
        ends = fit.spans(starts, queue.time_s[job])[1]
        resources = int(queue.hardware[job]), float(queue.units[job]), float(queue.power_watts[job])
        if fit.fits(0, int(ends[0]), *resources):
            fit.take(0, int(ends[0]), *resources)
            continue
        possible = fit.possible(ends, *resources, urgent=True)
        if np.any(possible):
            row = int(np.argmax(possible))
            fit.take(row, int(ends[row]), *resources)
