"""Units of work that the processes of a job reported.

The module also computes the rate of the slowest process.
"""

from __future__ import annotations

import collections
import itertools
import math
import statistics
from typing import Final

from slurm_energy.tuning.progress.estimate import Progress, relative_error_of_mean
from slurm_energy.tuning.progress.pause_cycle import MAX_CYCLE_S, PauseCycle, may_become_cycle, pause_cycle
from slurm_energy.tuning.progress_window import ProgressSource

MAX_PROCESSES: Final = 1024
"""Further processes replace processes that have ended, and are otherwise ignored. A node has fewer ranks."""
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
_CYCLE_REPORTS: Final = 400
"""Last reports in which regular pauses are sought."""
_PART_ERROR: Final = 0.01
_SLOWER_CYCLE: Final = 3.0
_REPORT_LATENCY_S: Final = 1.2
_ENDED_UNITS, _MIN_ENDED_S = 5.0, 60.0
"""A process has ended if it has been silent for this many of its units and seconds while others reported."""


class ReportedUnits:
    """Progress reports of all processes of a job.

    Each report states the total number of units of work that a process has completed since its start.
    """

    def __init__(self) -> None:
        self._reports: dict[str, collections.deque[tuple[float, float]]] = {}
        self._kept = MAX_REPORTS
        self._slowest = ""
        self._cycle: tuple[str, float, PauseCycle | None] = ("", -math.inf, None)

    def __bool__(self) -> bool:
        """Return whether any process has reported its progress."""
        return bool(self._reports)

    @property
    def last_s(self) -> float:
        """Time of the last report of any process; minus infinity without reports."""
        return max((reports[-1][0] for reports in self._reports.values() if reports), default=-math.inf)

    def add(self, units: float, time_s: float, process: str) -> None:
        """Store a report.

        A total that is lower than the previous total starts a new series, because the process has started
        again. A report that is not finite, or not later than the previous report, is ignored.

        Args:
            units: units of work that the process has completed since its start.
            time_s: seconds of a monotonic clock at which the last unit was completed.
            process: key of the process, for example its rank.
        """
        if not (math.isfinite(units) and math.isfinite(time_s)):
            return
        reports = self._reports.get(process)
        if reports is None:
            if len(self._reports) >= MAX_PROCESSES and not self._remove_ended():
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
        """Return the rate of the slowest process in units of work per second, over a time window.

        A process with fewer than two reports in the window is left out: either the process has ended, or one
        of its units takes longer than the window. If the slowest process pauses regularly, its rate is the
        mean over whole pause cycles (times from one pause to the next).

        The result is None if no process has two reports, or if the window is shorter than a pause cycle.
        """
        rates = {key: _rate_of(reports, start_s, end_s) for key, reports in self._reports.items()}
        known = {key: rate for key, rate in rates.items() if rate is not None}
        if not known:
            return None
        self._slowest = min(known, key=lambda key: known[key].units_per_s)
        cycle = self.cycle
        if cycle is None:
            return known[self._slowest]
        return _cycle_rate(self._reports[self._slowest], cycle, start_s, end_s)

    @property
    def cycle(self) -> PauseCycle | None:
        """Regular cycle of pauses of the process that was slowest in the last measurement window."""
        reports = self._reports.get(self._slowest)
        if not reports:
            return None
        if self._cycle[:2] != (self._slowest, reports[-1][0]):
            steps = _steps(reports, -math.inf, math.inf, _CYCLE_REPORTS)
            # A known cycle takes longer at slower settings.
            max_s = MAX_CYCLE_S if self._cycle[2] is None else _SLOWER_CYCLE * MAX_CYCLE_S
            self._cycle = self._slowest, reports[-1][0], pause_cycle(steps, max_s)
        return self._cycle[2]

    @property
    def may_become_cycle(self) -> bool:
        """Whether the program has paused, but too rarely to tell if its pauses are regular.

        Only the process that reported first is considered. It must have paused once or twice.
        """
        reports = next(iter(self._reports.values()), None)
        if not reports or self.cycle is not None:
            return False
        return may_become_cycle(_steps(reports, -math.inf, math.inf, _CYCLE_REPORTS))

    def rate_of_part(self, start_s: float, end_s: float) -> Progress | None:
        """Return the rate of the slowest process over a short window.

        The window may be shorter than the interval between two regular pauses of the program. The rate is
        therefore computed from the median duration of a unit of work. If the process pauses regularly, the
        mean length of the pauses is included.

        Args:
            start_s: start of the window.
            end_s: end of the window.
        """
        rates = [_median_rate(reports, start_s, end_s) for reports in self._reports.values()]
        known = [rate for rate in rates if rate is not None]
        return self._with_pauses(min(known, key=lambda rate: rate.units_per_s)) if known else None

    def is_paused(self, time_s: float) -> bool:
        """Return whether any process that pauses regularly was in a pause at the given time."""
        cycle, reports = self.cycle, self._reports.get(self._slowest)
        if cycle is None or not reports:
            return False
        after = next((number for number, report in enumerate(reports) if report[0] >= time_s), None)
        if not after:
            return False
        before, end = reports[after - 1], reports[after]
        usual_s = (cycle.seconds - cycle.pause_s) / cycle.units * (end[1] - before[1])
        return end[0] - before[0] - usual_s > cycle.pause_s / 2

    def _with_pauses(self, rate: Progress) -> Progress:
        """Return the rate that includes the regular pauses of the slowest process.

        The given rate excludes pauses. It is returned unchanged if the process has no regular pauses.
        """
        cycle = self.cycle
        if cycle is None:
            return rate
        units_per_s = cycle.units / (cycle.units / rate.units_per_s + cycle.pause_s)
        error = math.hypot(cycle.relative_error(rate.relative_error, 1), _PART_ERROR)
        return Progress(units_per_s, error, rate.source, spans_cycles=True)

    def sudden_slowdown(self, since_s: float, now_s: float) -> Progress | None:
        """Return the present rate of work of the slowest process if it has suddenly slowed down.

        The result is None if no process has slowed down. An interval is the time between two reports of
        completed units of work. A single slow interval may be a pause, for example a checkpoint. Therefore
        two intervals must be slow: normally the last complete interval and the current one. If a unit has
        just been completed, the last two complete intervals must be slow instead.

        Args:
            since_s: time since which the process has run under the same conditions, such as the same
                settings.
            now_s: current time.
        """
        latency_s = 0.0 if self.cycle is None else _REPORT_LATENCY_S
        rates = [_slow_rate(reports, since_s, now_s, latency_s) for reports in self._reports.values()]
        known = [rate for rate in rates if rate is not None]
        return self._with_pauses(min(known, key=lambda rate: rate.units_per_s)) if known else None

    def unit_s(self) -> float | None:
        """Return the mean seconds between two recent progress reports of a job.

        If the job has several processes, the one that reports least often counts. Processes that have ended
        do not count.
        """
        last_s = self.last_s
        lengths = (_unit_s(reports) for reports in self._reports.values() if not _has_ended(reports, last_s))
        return max((length_s for length_s in lengths if length_s is not None), default=None)

    def _remove_ended(self) -> bool:
        """Remove the process that has been silent for the longest time. Return whether it had ended."""
        process = min(self._reports, key=lambda key: self._reports[key][-1][0])
        if not _has_ended(self._reports[process], self.last_s):
            return False
        del self._reports[process]
        return True


def _unit_s(reports: collections.deque[tuple[float, float]]) -> float | None:
    """Return the mean seconds between the last reports of a process; None if there is only one report."""
    intervals = min(len(reports), 8) - 1
    return (reports[-1][0] - reports[-1 - intervals][0]) / intervals if intervals > 0 else None


def _has_ended(reports: collections.deque[tuple[float, float]], last_s: float) -> bool:
    """Return whether a process has probably ended, because it is silent while another process reports.

    Args:
        reports: reports of the process.
        last_s: time of the last report of any process.
    """
    usual_s = _unit_s(reports) or 0.0
    return last_s - reports[-1][0] > max(_MIN_ENDED_S, _ENDED_UNITS * usual_s)


def _rate_of(
    reports: collections.deque[tuple[float, float]], start_s: float, end_s: float
) -> Progress | None:
    """Return the rate of work of one process between two of its reports in a measurement window.

    The reports are the first and the last one in the window. Each is sent at the end of a unit of work, so
    that no partial unit counts. Intervals in which a unit took more than three times the median are pauses,
    unless they are frequent.
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


def _median_rate(
    reports: collections.deque[tuple[float, float]], start_s: float, end_s: float
) -> Progress | None:
    """Return the rate at which one process worked in a measurement window.

    The rate is the inverse of the median time per unit of work, such as a training step. If the number of
    units is even, the shorter of the two middle times counts.
    """
    steps = _steps(reports, start_s, end_s)
    per_unit = sorted((b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(steps))
    if not per_unit:
        return None
    length_s = per_unit[(len(per_unit) - 1) // 2]
    usual = [length for length in per_unit if length <= _PAUSE_FACTOR * length_s]
    return Progress(1.0 / length_s, relative_error_of_mean(usual), ProgressSource.REPORTED)


def _cycle_rate(
    reports: collections.deque[tuple[float, float]], cycle: PauseCycle, start_s: float, end_s: float
) -> Progress | None:
    """Return the rate of progress of one process over a window, if it has regular pauses.

    A cycle is the time from one pause to the next. Only whole cycles in the window are used. Return None
    without a whole cycle.
    """
    steps = _steps(reports, start_s, end_s)
    if len(steps) < 2:
        return None
    last = steps[-1]
    grain = statistics.median(b[1] - a[1] for a, b in itertools.pairwise(steps))
    cycles = int((last[1] - steps[0][1] + grain / 2) / cycle.units)
    if cycles < 1:
        return None
    first = min(steps[:-1], key=lambda step: abs(last[1] - step[1] - cycles * cycle.units))
    per_unit = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(steps[steps.index(first) :])]
    usual_s = _PAUSE_FACTOR / 2 * statistics.median(per_unit)
    active_error = relative_error_of_mean([length for length in per_unit if length <= usual_s])
    rate = (last[1] - first[1]) / (last[0] - first[0])
    error = cycle.relative_error(active_error, cycles)
    return Progress(rate, error, ProgressSource.REPORTED, spans_cycles=True)


def _steps(
    reports: collections.deque[tuple[float, float]], start_s: float, end_s: float, most: int = MAX_REPORTS
) -> list[tuple[float, float]]:
    """Return the last reports of a process in a measurement window, at most `most` of them.

    Reports that add no new unit of work are left out.
    """
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
    reports: collections.deque[tuple[float, float]], since_s: float, now_s: float, latency_s: float
) -> Progress | None:
    """Return the progress rate of a process if its last units of work were clearly slow, else None.

    Slow means longer than the earlier units.

    Args:
        reports: reports of the process.
        since_s: time since which the conditions of the process have not changed.
        now_s: current time.
        latency_s: maximum time until a report arrives. A unit that is still running is only counted as slow
            after this additional time.
    """
    steps = _steps(reports, since_s, now_s, _USUAL_INTERVALS + 3)
    lengths = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(steps)]
    if len(lengths) < _MIN_USUAL_INTERVALS + 1:
        return None
    open_s = (now_s - latency_s - steps[-1][0]) / (steps[-1][1] - steps[-2][1])
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
