"""Recorder of the intervals in which jobs draw power.

Cost and emissions are computed from these intervals.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints

SegmentColumns = tuple[Ints, Floats, Floats, Floats]
"""Row of the job, start, end and watts of each segment."""


class RunSegments:
    """Record of the intervals in which each job drew a constant power."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, float, float, float]] = []

    def add(self, job: int, worked_s: float, end_s: float, watts: float) -> None:
        """Record that a job drew a constant power in an interval.

        The interval ends at `end_s` and is `worked_s` seconds long. The power is `watts`. `job` is the row
        of the job in the workload.
        """
        if worked_s > 0:
            self._rows.append((job, end_s - worked_s, end_s, watts))

    def columns(self) -> SegmentColumns:
        """Return all recorded intervals as columns."""
        table = np.array(self._rows, np.float64).reshape(-1, 4)
        return table[:, 0].astype(np.int64), table[:, 1], table[:, 2], table[:, 3]
