"""Statistics of the phases of one process, collected step by step.

The result is a `RankSteps`. The statistics need a bounded amount of memory and no clock.
"""

from __future__ import annotations

import collections
import functools
import heapq
import math
from array import array
from collections.abc import Mapping
from typing import Final, NamedTuple

from slurm_energy.diagnosis.json_codec import MAX_NAME, MAX_PHASES
from slurm_energy.diagnosis.steps import (
    STANDARD_PHASES,
    Hint,
    PhaseStatistics,
    RankSteps,
    StepIntervals,
    StepOutlier,
    duration_bin,
)

OTHER_PHASE: Final = "other"
"""Name of all phases beyond the maximum number of names."""
PAUSES: Final = ("checkpoint", "evaluation")
"""Phases that do not count as part of a step, even if they run inside a step."""

_MAX_INTERVALS: Final = 720
_FIRST_INTERVAL_NS: Final = 1_000_000_000
_WINDOW: Final = 50
_MIN_WINDOW: Final = 20
_SIGMAS: Final = 3.0
_MAX_OUTLIERS: Final = 32
_MAX_PAUSES: Final = 1000


class TimedPhase(NamedTuple):
    """One execution of a phase.

    Attributes:
        name: name of the phase.
        start_ns: start in ns of CLOCK_MONOTONIC.
        end_ns: end in ns of CLOCK_MONOTONIC.
        value: number of samples of a step; NaN means that the number is unknown, or that the phase is no
            step.
        thread: identifier of the thread; `GPU` for phases that the GPU has timed.
        weight: number of steps that this execution represents. In short steps, phases are timed only
            occasionally.
    """

    name: str
    start_ns: int
    end_ns: int
    value: float
    thread: int
    weight: int = 1


GPU: Final = -1
"""Thread of phases that the GPU has timed."""


@functools.lru_cache(maxsize=256)
def phase_name(text: str) -> str:
    """Convert a text to a valid name for a phase (named part) of a program's step.

    A valid name contains only printable characters, at most 64.
    """
    name = "".join(character if character.isprintable() else "?" for character in text[:MAX_NAME])
    return name or OTHER_PHASE


class _Durations:
    """Accumulator for the durations of one phase, which computes the statistics of these durations."""

    __slots__ = ("count", "histogram", "sum_ns", "sum_squares_s2")

    def __init__(self) -> None:
        self.count, self.sum_ns, self.sum_squares_s2 = 0, 0, 0.0
        self.histogram: dict[int, int] = {}

    def add(self, duration_ns: int, weight: int = 1) -> None:
        seconds = duration_ns * 1e-9
        self.count += weight
        self.sum_ns += weight * duration_ns
        self.sum_squares_s2 += weight * seconds * seconds
        number, histogram = duration_bin(seconds), self.histogram
        histogram[number] = histogram.get(number, 0) + weight

    def statistics(self) -> PhaseStatistics:
        return PhaseStatistics(self.count, self.sum_ns * 1e-9, self.sum_squares_s2, dict(self.histogram))


class _RollingDuration:
    """Rolling mean and standard deviation of the durations of the last 50 steps.

    An outlier is replaced by the outlier limit before it enters the mean. A single outlier therefore does not
    hide the next outlier, and the mean follows a lasting change.
    """

    def __init__(self) -> None:
        self._window: collections.deque[int] = collections.deque()
        self._sum = self._sum_squares = 0

    def add(self, duration_ns: int) -> float | None:
        """Add a duration.

        If the duration is an outlier, return the mean of the previous durations in ns, else None.
        """
        window, total, squares, expected_ns = self._window, self._sum, self._sum_squares, None
        count = len(window)
        if count >= _MIN_WINDOW:
            excess = count * duration_ns - total
            # Whole numbers: the excess over the mean and the variance, times the number of steps.
            if excess > 0:
                variance = count * squares - total * total
                if excess * excess > _SIGMAS**2 * variance:
                    expected_ns = total / count
                    duration_ns = math.ceil(expected_ns + _SIGMAS * math.sqrt(variance) / count)
        if count == _WINDOW:
            oldest = window.popleft()
            total -= oldest
            squares -= oldest * oldest
        window.append(duration_ns)
        self._sum = total + duration_ns
        self._sum_squares = squares + duration_ns * duration_ns
        return expected_ns


class _Intervals:
    """Statistics of a process's steps over time, in at most 720 intervals of equal length.

    If the steps take longer than all intervals together, the length of the intervals is doubled.
    """

    def __init__(self, start_ns: int) -> None:
        self.start_ns, self.length_ns = start_ns, _FIRST_INTERVAL_NS
        self.columns = tuple(array("d") for _ in range(3))

    def add_step(self, at_ns: int, duration_s: float) -> None:
        index = self._index(at_ns)
        steps, seconds, _ = self.columns
        steps[index] += 1
        seconds[index] += duration_s

    def add_data(self, at_ns: int, duration_s: float) -> None:
        index = self._index(at_ns)
        self.columns[2][index] += duration_s

    def _index(self, at_ns: int) -> int:
        """Return the index of the time interval that contains the instant `at_ns`.

        If the instant is after the last possible interval, the length of all intervals is doubled until one
        interval contains the instant.
        """
        index = (at_ns - self.start_ns) // self.length_ns
        missing = index + 1 - len(self.columns[0])
        if missing <= 0:
            return max(0, index)
        while index >= _MAX_INTERVALS:
            self.columns = tuple(
                array("d", (math.fsum(column[i : i + 2]) for i in range(0, len(column), 2)))
                for column in self.columns
            )
            self.length_ns *= 2
            index //= 2
        missing = index + 1 - len(self.columns[0])
        for column in self.columns:
            column.extend([0.0] * missing)
        return index

    def result(self, unix_offset_ns: int) -> StepIntervals:
        columns = (array("d", column) for column in self.columns)
        return StepIntervals((self.start_ns + unix_offset_ns) * 1e-9, self.length_ns * 1e-9, *columns)


class StepStatistics:
    """Statistics of the phases of one process.

    Phases are added in the order of their ends. A phase `step` completes a step. The other phases since the
    previous `step` belong to this step.

    Args:
        unix_offset_ns: Unix time minus CLOCK_MONOTONIC.
    """

    def __init__(self, unix_offset_ns: int) -> None:
        self._unix_offset_ns = unix_offset_ns
        self._phases: dict[str, _Durations] = {}
        self._samples: float | None = None
        self._rolling = _RollingDuration()
        self._outlier_count, self._excess_ns = 0, 0.0
        self._outliers: list[tuple[float, int, StepOutlier]] = []
        self._intervals: _Intervals | None = None
        self._pauses: list[TimedPhase] = []
        # Time by phase in the current step, and its mean in steps with the phase.
        self._in_step: dict[str, int] = {}
        self._expected: dict[str, float] = {}

    def add(self, phase: TimedPhase) -> None:
        """Add one execution of a phase."""
        if phase.name == "step":
            self._end_step(phase.start_ns, max(phase.start_ns, phase.end_ns), phase.value, phase.thread)
            return
        duration_ns = max(0, phase.end_ns - phase.start_ns)
        name = self._counted(phase.name)
        self._phases[name].add(duration_ns, phase.weight)
        if phase.name in PAUSES:
            if len(self._pauses) < _MAX_PAUSES:
                self._pauses.append(phase)
        elif phase.thread != GPU:
            self._in_step[name] = self._in_step.get(name, 0) + duration_ns
        if phase.name == "data":
            self._interval(phase.start_ns).add_data(phase.end_ns, duration_ns * 1e-9)

    def add_step(self, start_ns: int, received_ns: int, end_ns: int, samples: float, thread: int) -> None:
        """Add one iteration of a loop (step) and the wait for its data, which precedes the computation.

        Args:
            start_ns: start of the step and of the wait for data.
            received_ns: end of the wait.
            end_ns: end of the step.
            samples: number of training samples of the step; NaN means unknown.
            thread: identifier of the thread.
        """
        waited_ns = received_ns - start_ns
        data = self._phases.get("data")
        if data is None:
            data = self._phases["data"] = _Durations()
        data.add(waited_ns)
        self._in_step["data"] = self._in_step.get("data", 0) + waited_ns
        self._interval(start_ns).add_data(received_ns, waited_ns * 1e-9)
        self._end_step(start_ns, end_ns, samples, thread)

    def add_samples(self, samples: float) -> None:
        """Add a correction to the number of samples that the steps have processed.

        The correction is needed because the last batch of an epoch may be smaller than the others.
        """
        if self._samples is not None:
            self._samples += samples

    def result(
        self, *, node: str, rank: int | None, gpu: int | None, pid: int, hints: Mapping[str, Hint]
    ) -> RankSteps:
        """Return the statistics so far.

        Args:
            node: node of the process.
            rank: global rank; None if unknown.
            gpu: index of the process's GPU on the node; None if unknown.
            pid: process id.
            hints: settings that callbacks reported.
        """
        outliers = sorted((entry[2] for entry in self._outliers), key=lambda outlier: outlier.at_s)
        return RankSteps(
            node,
            rank,
            gpu,
            pid,
            {name: durations.statistics() for name, durations in self._phases.items()},
            self._samples,
            self._outlier_count,
            self._excess_ns * 1e-9,
            tuple(outliers),
            None if self._intervals is None else self._intervals.result(self._unix_offset_ns),
            dict(hints),
        )

    def _counted(self, name: str) -> str:
        """Return the name under which the statistics of a phase are kept, and prepare these statistics.

        If there are too many different names, the name is `other`.
        """
        if name not in self._phases:
            # Standard names and `other` always have room.
            own = sum(known not in STANDARD_PHASES for known in self._phases)
            if name not in STANDARD_PHASES and own >= MAX_PHASES - len(STANDARD_PHASES) - 1:
                name = OTHER_PHASE
            self._phases.setdefault(name, _Durations())
        return name

    def _interval(self, start_ns: int) -> _Intervals:
        if self._intervals is None:
            self._intervals = _Intervals(start_ns)
        return self._intervals

    def _end_step(self, start_ns: int, end_ns: int, samples: float, thread: int) -> None:
        duration_ns = end_ns - start_ns
        if self._pauses:
            for pause in self._pauses:
                if pause.start_ns >= start_ns and pause.thread == thread:
                    duration_ns -= pause.end_ns - pause.start_ns
            self._pauses.clear()
            duration_ns = max(0, duration_ns)
        step = self._phases.get("step")
        if step is None:
            step = self._phases["step"] = _Durations()
        step.add(duration_ns)
        self._interval(start_ns).add_step(end_ns, duration_ns * 1e-9)
        if samples == samples:  # not NaN
            self._samples = (self._samples or 0.0) + samples
        expected_ns = self._rolling.add(duration_ns)
        if expected_ns is not None:
            self._add_outlier(start_ns, duration_ns, expected_ns)
        in_step, expected = self._in_step, self._expected
        for name, ns in in_step.items():
            before = expected.get(name, ns)
            expected[name] = before + (ns - before) / _WINDOW
        in_step.clear()

    def _add_outlier(self, start_ns: int, duration_ns: int, expected_ns: float) -> None:
        excess_ns = duration_ns - expected_ns
        self._outlier_count += 1
        self._excess_ns += excess_ns
        excesses = {name: ns - self._expected.get(name, ns) for name, ns in self._in_step.items()}
        phase = max(excesses, key=excesses.__getitem__, default="")
        if excesses.get(phase, 0.0) < excess_ns / 2:
            phase = ""  # no phase accounts for the greater part
        at_s = (start_ns + self._unix_offset_ns) * 1e-9
        outlier = StepOutlier(at_s, duration_ns * 1e-9, expected_ns * 1e-9, phase)
        entry = (excess_ns, self._outlier_count, outlier)
        if len(self._outliers) < _MAX_OUTLIERS:
            heapq.heappush(self._outliers, entry)
        else:
            heapq.heappushpop(self._outliers, entry)
