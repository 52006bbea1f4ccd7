"""Detection of regular pauses of a program, for example a checkpoint after every 20 steps."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_CYCLE_S: Final = 120.0
"""Longer cycles would make the measurements of a search too long."""
_PAUSE_FACTOR: Final = 1.6
_NEIGHBOUR_FACTOR: Final = 1.3
_MIN_INTERVALS: Final = 8
_MIN_INTERVALS_PER_CYCLE: Final = 4
_MIN_PAUSES: Final = 3
_LAST_GAPS: Final = 3
_SAME: Final = 0.1
_OVERDUE: Final = 1.35
_MIN_VARIATION: Final = 0.05
"""Assumed relative standard deviation of a pause, which counts as much as one measured pause."""

Report = tuple[float, float]
"""Time in seconds and units of work completed by then."""


@dataclass(frozen=True, slots=True)
class PauseCycle:
    """Cycle of a program that pauses regularly.

    Between two pauses, the program always does the same number of units of work. Speed must therefore be
    measured over whole cycles. A measurement over whole cycles contains the same number of pauses, wherever
    it begins. A shorter measurement may or may not contain a pause.

    Attributes:
        units: units of work between two pauses.
        seconds: mean duration of the last cycles, each with one pause.
        pause_s: mean time that a pause takes in addition to the work.
        pause_error_s: standard deviation of the time that a pause takes.
    """

    units: float
    seconds: float
    pause_s: float
    pause_error_s: float

    def relative_error(self, active_error: float, cycles: int) -> float:
        """Return the relative standard error of a speed that is measured over whole pause cycles.

        A cycle consists of a time of work and a regular pause, for example for a checkpoint.

        Args:
            active_error: relative standard error of the speed without pauses.
            cycles: number of cycles.
        """
        active_share = 1.0 - self.pause_s / self.seconds
        return math.hypot(active_share * active_error, self.pause_error_s / self.seconds / math.sqrt(cycles))


def pause_cycle(reports: Sequence[Report], max_s: float = MAX_CYCLE_S) -> PauseCycle | None:
    """Return the cycle of the regular pauses of a process; None if the process has no regular pauses.

    A process reports how many units of work it has completed. A pause is an interval between two reports in
    which one unit took clearly longer than in the intervals before and after. Several slow intervals in a
    row are a change of the speed, not a pause.

    Args:
        reports: reports of the process in order of time. Each report has more units than the previous
            report.
        max_s: maximum duration of a cycle.
    """
    intervals = [
        (after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(reports)
    ]
    if len(intervals) < _MIN_INTERVALS:
        return None
    pauses = _pauses([seconds / units for seconds, units in intervals])
    if len(pauses) < _MIN_PAUSES:
        return None
    recent = pauses[-_LAST_GAPS - 1 :]
    ends = [reports[number + 1] for number in recent]
    gaps = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(ends)]
    seconds, units = (statistics.median(values) for values in zip(*gaps, strict=True))
    grain = statistics.median(units for _, units in intervals)
    is_regular = all(abs(gap - units) <= max(_SAME * units, grain) for _, gap in gaps)
    is_overdue = reports[-1][1] - ends[-1][1] > _OVERDUE * units + grain
    if not is_regular or is_overdue or units < _MIN_INTERVALS_PER_CYCLE * grain or seconds > max_s:
        return None
    lengths = [_pause_s(intervals, number) for number in recent]
    mean_s = statistics.fmean(lengths)
    squares = math.fsum((length - mean_s) ** 2 for length in lengths) + (_MIN_VARIATION * mean_s) ** 2
    return PauseCycle(units, seconds, mean_s, math.sqrt(squares / len(lengths)))


def may_become_cycle(reports: Sequence[Report]) -> bool:
    """Return whether a process has paused once or twice and may turn out to pause regularly.

    Args:
        reports: reports of the process since its start, as in `pause_cycle`.
    """
    intervals = [
        (after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(reports)
    ]
    if len(intervals) < _MIN_INTERVALS:
        return False
    pauses = _pauses([seconds / units for seconds, units in intervals])
    if not 0 < len(pauses) < _MIN_PAUSES:
        return False
    last = reports[pauses[-1] + 1]
    before = reports[pauses[-2] + 1] if len(pauses) > 1 else reports[0]
    since_units, units = reports[-1][1] - last[1], last[1] - before[1]
    return since_units <= _OVERDUE * units and last[0] - before[0] <= MAX_CYCLE_S


def _pauses(per_unit: Sequence[float]) -> list[int]:
    """Return the indices of the intervals in which the program paused.

    A pause is much longer than the usual interval. Because settings of the hardware may change, it must also
    be longer than the intervals directly before and after it.

    Args:
        per_unit: time per unit of work in each interval.
    """
    usual = statistics.median(per_unit)
    pauses = []
    for number in range(1, len(per_unit) - 1):
        before, length, after = per_unit[number - 1 : number + 2]
        slower = max(before, after)
        if length > _PAUSE_FACTOR * max(usual, min(before, after)) and slower < length / _NEIGHBOUR_FACTOR:
            pauses.append(number)
    return pauses


def _pause_s(intervals: Sequence[tuple[float, float]], number: int) -> float:
    """Return the length in seconds of the pause between two reports of a job's progress.

    `number` is the index of the interval between the two reports. The pause is the duration of the
    interval minus the time of the work that was done in it. The time of the work is computed with the
    speed in the two neighbouring intervals.
    """
    seconds, units = intervals[number]
    beside = [intervals[number - 1], intervals[number + 1]]
    usual_s = math.fsum(length for length, _ in beside) / math.fsum(count for _, count in beside)
    return max(seconds - usual_s * units, 0.0)
