"""Overview of a job on its timeline page: how much time each process spent in each phase.

The overview divides the time window into a fixed number of columns. The fixed number limits the size of the
page.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.diagnosis.steps import STANDARD_PHASES, RankSteps
from slurm_energy.diagnosis.timeline.window import NANOSECONDS, TimeWindow

COLUMNS: Final = 480
MAX_ROWS: Final = 64
"""Maximum number of rows. If there are more processes, neighbouring processes share rows."""
STEP, OTHER = "step", "other"
CATEGORIES: Final = (*(name for name in STANDARD_PHASES if name != STEP), OTHER, STEP)
"""Categories in the order in which a row stacks them.

Sections of users are `other`. `step` is the part of the steps that no phase inside them accounts for.
"""


@dataclass(slots=True)
class OverviewRow:
    """Row of a chart that shows the time of processes by category over the duration of a job.

    A row stands for one process, or for several neighbouring processes together.

    Attributes:
        name: name of the row.
        members: number of processes.
        is_gpu: whether the row shows the events that the GPU has timed.
        nanoseconds: for each category, the nanoseconds in each column (time interval) of the chart.
    """

    name: str
    members: int = 0
    is_gpu: bool = False
    nanoseconds: dict[str, array[float]] = field(default_factory=dict)

    def column(self, phase: str) -> array[float]:
        """Return the values of one category in this row of the chart, for changes by the caller.

        The values are nanoseconds, one for each time interval (column) of the chart. Each phase belongs to a
        category. A category that the row does not have yet is added with zeros.

        Args:
            phase: name of the phase.
        """
        category = phase if phase in CATEGORIES else OTHER
        if category not in self.nanoseconds:
            self.nanoseconds[category] = array("d", bytes(8 * COLUMNS))
        return self.nanoseconds[category]


class Overview:
    """Overview of a job's processes over the time window of the timeline: one row per process.

    Args:
        window: part of the job's time that the timeline shows.
    """

    def __init__(self, window: TimeWindow) -> None:
        self.window = window
        self.column_ns = -(-(window.to_ns - window.from_ns) // COLUMNS)
        self.rows: list[OverviewRow] = []

    def rows_for(self, names: Sequence[str]) -> list[tuple[OverviewRow, OverviewRow]]:
        """Return two rows for each process: one for its own events and one for the events of its GPU.

        Neighbouring processes share rows if there are more than `MAX_ROWS` processes.

        Args:
            names: short names of the processes in the order of the rows.
        """
        size = max(1, -(-len(names) // MAX_ROWS))
        pairs: list[tuple[OverviewRow, OverviewRow]] = []
        for first in range(0, len(names), size):
            members = names[first : first + size]
            name = members[0] if len(members) == 1 else f"{members[0]} to {members[-1]}"
            pairs.append(
                (OverviewRow(name, len(members)), OverviewRow(f"{name} GPU", len(members), is_gpu=True))
            )
            self.rows += pairs[-1]
        return [pairs[index // size] for index in range(len(names))]

    def add(self, column: array[float], start_ns: int, end_ns: int, weight: float = 1.0) -> None:
        """Add a time interval to the columns of the chart that the interval overlaps.

        A column of the chart is an equal part of the time window. Each overlapped column grows by the
        nanoseconds of the overlap.

        Args:
            column: nanoseconds per column of the chart; changed in place.
            start_ns: start of the interval in Unix nanoseconds, within the window.
            end_ns: end of the interval in Unix nanoseconds, within the window.
            weight: fraction of the interval that counts.
        """
        index = max(0, (start_ns - self.window.from_ns) // self.column_ns)
        edge = self.window.from_ns + (index + 1) * self.column_ns
        while end_ns > edge and index < COLUMNS - 1:
            column[index] += weight * (edge - start_ns)
            start_ns = edge
            index += 1
            edge += self.column_ns
        column[min(index, COLUMNS - 1)] += weight * (end_ns - start_ns)

    def add_steps(self, row: OverviewRow, steps: RankSteps) -> None:
        """Add the steps of a process to its row of the overview.

        The process has no event file. Only statistics of its steps over time are known.
        """
        intervals = steps.intervals
        if intervals is None:
            return
        for phase, column in ((STEP, intervals.step_seconds), ("data", intervals.data_seconds)):
            into = row.column(phase)
            for index, seconds in enumerate(column):
                start_s = intervals.start_s + index * intervals.interval_s
                clipped = self.window.clip_s(start_s, start_s + intervals.interval_s)
                if clipped and seconds > 0:
                    start_ns, end_ns = (round(time_s * NANOSECONDS) for time_s in clipped)
                    if start_ns < self.window.to_ns:
                        self.add(into, start_ns, end_ns, min(1.0, seconds / intervals.interval_s))

    def shares(self, row: OverviewRow) -> dict[str, list[float]]:
        """Return the fraction of each column's time by category, in the order of `CATEGORIES`.

        The fractions of a column add up to at most 1. If phases overlap, phases of `STANDARD_PHASES` take
        precedence over sections of users, because a section may contain these phases. Sections take
        precedence over the rest of the steps, because steps contain both.
        """
        total = self.column_ns * row.members
        names = [name for name in CATEGORIES if name in row.nanoseconds]
        shares: dict[str, list[float]] = {name: [0.0] * COLUMNS for name in names}
        for index in range(COLUMNS):
            inner = 0.0
            for name in names:
                share = row.nanoseconds[name][index] / total
                if name in (OTHER, STEP):
                    share = max(0.0, share - inner)
                share = max(0.0, min(share, 1.0 - inner))
                shares[name][index] = share
                inner += share
        return shares
