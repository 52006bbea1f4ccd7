"""What will be free when, as far as expected ends tell: the ground of reservations and backfilling.

Resources are a vector: units of each kind of hardware, and watts of the power budget last.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_energy.scheduling.queue import Floats

_SLACK = 1e-9
"""Sums of floats of one kind in another order differ by less, relative to 1 W."""


class AvailabilityProfile:
    """Free resources from each time on, the last row for ever.

    Args:
        now_s: begin.
        free: free now, shape (r,).
        releases: (time, resources) of what becomes free.
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
        """Return whether something can start now without touching what is reserved."""
        return self._fits(0, need, length_s)

    def earliest(self, need: Floats, length_s: float) -> float | None:
        """Return when something can start at the earliest; None: never."""
        for index in range(len(self._times)):
            if self._fits(index, need, length_s):
                return self._times[index]
        return None

    def take(self, start_s: float, length_s: float, need: Floats) -> None:
        """Reserve resources for a time that begins at a step of the profile."""
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
        """Return the index of the step at a time, made if there is none."""
        index = int(np.searchsorted(self._times, time_s, "left"))
        if index < len(self._times) and self._times[index] == time_s:
            return index
        self._times.insert(index, time_s)
        self._free = np.insert(self._free, index, self._free[index - 1], axis=0)
        return index
