"""Free resources over time, computed from the expected ends of running jobs.

Reservations and backfill use the free resources. The resources are a vector of r numbers: the free units of
each kind of hardware and, last, the free watts of the power budget.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_energy.scheduling.queue import Floats

_SLACK = 1e-9
"""Tolerance relative to 1 W: sums of the same floats in different order differ by less."""


class AvailabilityProfile:
    """Free resources as a step function of time. The last step has no end.

    Args:
        now_s: start of the profile, in seconds on the caller's clock.
        free: resources that are free now, shape (r,). They are the units of each kind of hardware, followed
            by the watts of the power budget.
        releases: pairs of a time in seconds and the resources, shape (r,), that become free at that time.
    """

    def __init__(self, now_s: float, free: Floats, releases: Iterable[tuple[float, Floats]]) -> None:
        self._times, rows = [now_s], [free.copy()]
        for time_s, resources in sorted(releases, key=lambda release: release[0]):
            if time_s > self._times[-1]:
                self._times.append(time_s)
                rows.append(rows[-1] + resources)
            else:
                rows[-1] = rows[-1] + resources
        self._free: Floats = np.array(rows)

    def fits_now(self, need: Floats, length_s: float) -> bool:
        """Return whether a job can start now.

        Resources that are reserved for a time in which the job would run do not count as free.

        Args:
            need: resources that the job needs, shape (r,).
            length_s: seconds for which the job needs these resources.
        """
        return self._fits(0, need, length_s)

    def earliest(self, need: Floats, length_s: float) -> float | None:
        """Return the earliest time in seconds at which a job can start; None if the resources never suffice.

        Args:
            need: resources that the job needs, shape (r,).
            length_s: seconds for which the job needs these resources.
        """
        for index in range(len(self._times)):
            if self._fits(index, need, length_s):
                return self._times[index]
        return None

    def take(self, start_s: float, length_s: float, need: Floats) -> None:
        """Reserve the resources `need`, shape (r,), for `length_s` seconds from the time `start_s` on."""
        first = self._split(start_s)
        last = len(self._times) if np.isinf(length_s) else self._split(start_s + length_s)
        self._free[first:last] -= need

    def _fits(self, index: int, need: Floats, length_s: float) -> bool:
        end_s = self._times[index] + length_s
        last = index + 1
        while last < len(self._times) and self._times[last] < end_s:
            last += 1
        return bool(np.all(self._free[index:last] + _SLACK >= need))

    def _split(self, time_s: float) -> int:
        """Return the index of the profile's step that starts at `time_s`.

        If no step starts at this time, split the step that contains it.
        """
        index = int(np.searchsorted(self._times, time_s, "left"))
        if index < len(self._times) and self._times[index] == time_s:
            return index
        self._times.insert(index, time_s)
        self._free = np.insert(self._free, index, self._free[index - 1], axis=0)
        return index
