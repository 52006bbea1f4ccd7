"""CPU and GPU time of a job's run, by hour and between any two times.

Slurm's accounting states for how long a run was suspended, but not when. Therefore the time in which the run
was active counts as evenly distributed over the run. The sum of the active time over the whole run is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, case, func, select

from slurm_energy.accounting.schema.usage_tables import usage_runs
from slurm_energy.accounting.usage.sum_changes import HOUR_S, SumChanges


class RunTime(NamedTuple):
    """Time and resources of a job's run that have been added to the sums of `senergy report`.

    It is the content of one row of the table `usage_runs`.

    Attributes:
        usage_group: row id of the group to whose sums the run belongs.
        start, end: start and end in Unix seconds.
        cpus, gpus: numbers of allocated CPUs and GPUs.
        suspended_s: seconds for which the run was suspended.
    """

    usage_group: int
    start: int
    end: int
    cpus: int
    gpus: int
    suspended_s: int

    def add_hours(self, changes: SumChanges, sign: int) -> None:
        """Add the CPU and GPU seconds that the run used in each hour to `changes`.

        Args:
            changes: collector of the changes to the stored sums of energy, CPU time and GPU time.
            sign: 1 adds the seconds; -1 subtracts them.
        """
        if self.start == self.end:
            return
        for hour in range(self.start - self.start % HOUR_S, self.end, HOUR_S):
            seconds = self._active_s(min(self.end, hour + HOUR_S)) - self._active_s(max(self.start, hour))
            sums = {"cpu_seconds": sign * seconds * self.cpus, "gpu_seconds": sign * seconds * self.gpus}
            changes.add((hour, hour + HOUR_S, self.usage_group), sums)

    def _active_s(self, time: int) -> int:
        """Return the whole seconds before `time` in which the run was active, which means not suspended."""
        length_s = self.end - self.start
        return (time - self.start) * (length_s - self.suspended_s) // length_s


def run_times(connection: Connection, start: int, end: int) -> list[tuple[int, int, int]]:
    """Return (group, CPU-seconds, GPU-seconds) of each group of runs between two times (Unix seconds)."""
    runs = usage_runs.c
    length_s = runs.end - runs.start

    def active_s(time: ColumnElement[Any]) -> ColumnElement[Any]:
        return (time - runs.start) * (length_s - runs.suspended_s) // length_s

    seconds = active_s(case((runs.end < end, runs.end), else_=end)) - active_s(
        case((runs.start > start, runs.start), else_=start)
    )
    rows = connection.execute(
        select(runs.usage_group, func.sum(seconds * runs.cpus), func.sum(seconds * runs.gpus))
        .where(runs.end > start, runs.start < end, length_s > 0)
        .group_by(runs.usage_group)
        .order_by(runs.usage_group)
    )
    return [(int(group), int(cpu_seconds), int(gpu_seconds)) for group, cpu_seconds, gpu_seconds in rows]
