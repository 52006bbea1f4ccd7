"""Units of work that the processes of a job reported, and the rate of the slowest process."""

from __future__ import annotations

import collections
import itertools
import math
import statistics
from typing import Final

from slurm_energy.tuning.progress.estimate import Progress, relative_error_of_mean
from slurm_energy.tuning.progress_window import ProgressSource

MAX_PROCESSES: Final = 1024
"""Further processes are ignored. A node has fewer ranks."""
MAX_REPORTS: Final = 2048
"""Reports kept of a process that reports alone: 17 minutes at two reports per second."""
MAX_TOTAL_REPORTS: Final = 32_768
"""Reports kept of all processes. Many processes have shorter series, and report less often."""
_MIN_REPORTS: Final = 64
_PAUSE_FACTOR: Final = 3.0
_MAX_PAUSES: Final = 0.2
_MIN_FOR_PAUSES: Final = 5
_USUAL_INTERVALS: Final = 20
_MIN_USUAL_INTERVALS: Final = 3
_MIN_SLOWDOWN: Final = 0.08
_SLOWDOWN_SIGMA: Final = 4.0


class ReportedUnits:
    """Reports of all processes of a job. A report is the total of a process since its start."""

    def __init__(self) -> None:
        self._reports: dict[str, collections.deque[tuple[float, float]]] = {}
        self._kept = MAX_REPORTS

    def __bool__(self) -> bool:
        """Return whether any process has reported."""
        return bool(self._reports)

    def add(self, units: float, time_s: float, process: str) -> None:
        """Store a report.

        A total that is lower than the previous one starts a new series, because the process has started
        again. A report that is not finite, or not later than the previous one, is ignored.

        Args:
            units: units of work that the process has completed since its start.
            time_s: seconds of a monotonic clock at which the last unit was completed.
            process: key of the process, for example its rank.
        """
        if not (math.isfinite(units) and math.isfinite(time_s)):
            return
        reports = self._reports.get(process)
        if reports is None:
            if len(self._reports) >= MAX_PROCESSES:
                return
            reports = self._reports[process] = collections.deque(maxlen=MAX_REPORTS)
            self._kept = max(_MIN_REPORTS, MAX_TOTAL_REPORTS // len(self._reports))
        if reports:
            if time_s <= reports[-1][0]:
                return
            if units < reports[-1][1]:
                reports.clear()
        reports.append((time_s, units))
        while len(reports) > self._kept:
            reports.popleft()

    def rate(self, start_s: float, end_s: float) -> Progress | None:
        """Return the rate of the slowest process over a window; None without two reports of any process.

        A process without two reports in the window is left out: it has ended, or its units are longer than
        the window.
        """
        rates = [_rate_of(reports, start_s, end_s) for reports in self._reports.values()]
        return min(
            (rate for rate in rates if rate is not None), key=lambda rate: rate.units_per_s, default=None
        )

    def sudden_slowdown(self, since_s: float, now_s: float) -> Progress | None:
        """Return the current rate of the slowest process if it has become clearly slower than before.

        A single slow interval may be a pause, for example a checkpoint. The last complete interval and the
        current one must therefore both be slow, or the last two if a unit has just been completed.

        Args:
            since_s: time since which the process had the same conditions.
            now_s: current time.
        """
        rates = [_slow_rate(reports, since_s, now_s) for reports in self._reports.values()]
        return min(
            (rate for rate in rates if rate is not None), key=lambda rate: rate.units_per_s, default=None
        )

    def unit_s(self) -> float | None:
        """Return the seconds between the last reports of the process that reports least often."""
        lengths = []
        for reports in self._reports.values():
            if (steps := min(len(reports), 8) - 1) > 0:
                lengths.append((reports[-1][0] - reports[-1 - steps][0]) / steps)
        return max(lengths, default=None)


def _rate_of(
    reports: collections.deque[tuple[float, float]], start_s: float, end_s: float
) -> Progress | None:
    """Return the rate of one process between its first and its last report in a window.

    Both reports are at the end of a unit, so that no unit counts in part. Intervals in which a unit took more
    than three times the median are pauses, unless they are frequent.
    """
    steps = _steps(reports, start_s, end_s)
    if len(steps) < 2:
        return None
    intervals = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(steps)]
    active = _without_pauses(intervals)
    seconds = math.fsum(interval[0] for interval in active)
    units = math.fsum(interval[1] for interval in active)
    paused_s = math.fsum(interval[0] for interval in intervals) - seconds
    per_unit = [length / count for length, count in active]
    error = relative_error_of_mean(per_unit)
    return Progress(units / seconds, error, ProgressSource.REPORTED, paused_s / (paused_s + seconds))


def _steps(
    reports: collections.deque[tuple[float, float]], start_s: float, end_s: float, most: int = MAX_REPORTS
) -> list[tuple[float, float]]:
    """Return the last `most` reports of a window, without those that report no new unit."""
    inside: list[tuple[float, float]] = []
    for report in reversed(reports):
        if report[0] < start_s or len(inside) > most:
            break
        if report[0] > end_s:
            continue
        if inside and report[1] == inside[-1][1]:
            inside[-1] = report  # the later report of the same total has no new unit
        else:
            inside.append(report)
    return inside[most - 1 :: -1]


def _slow_rate(
    reports: collections.deque[tuple[float, float]], since_s: float, now_s: float
) -> Progress | None:
    """Return the rate of a process whose last units took clearly longer than the earlier ones, or None."""
    steps = _steps(reports, since_s, now_s, _USUAL_INTERVALS + 3)
    lengths = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(steps)]
    if len(lengths) < _MIN_USUAL_INTERVALS + 1:
        return None
    open_s = (now_s - steps[-1][0]) / (steps[-1][1] - steps[-2][1])
    for usual, slow in ((lengths[:-1], [lengths[-1], open_s]), (lengths[:-2], lengths[-2:])):
        if len(usual) < _MIN_USUAL_INTERVALS:
            continue
        median = statistics.median(usual)
        spread = 1.5 * statistics.median(abs(length - median) for length in usual) / median
        if min(slow) > median * (1.0 + max(_MIN_SLOWDOWN, _SLOWDOWN_SIGMA * spread)):
            return Progress(1.0 / min(slow), max(spread, 0.01), ProgressSource.REPORTED)
    return None


def _without_pauses(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(intervals) < _MIN_FOR_PAUSES:
        return intervals
    per_unit = sorted(length / count for length, count in intervals)
    limit = _PAUSE_FACTOR * per_unit[len(per_unit) // 2]
    active = [interval for interval in intervals if interval[0] / interval[1] <= limit]
    return active if len(intervals) - len(active) <= _MAX_PAUSES * len(intervals) else intervals
