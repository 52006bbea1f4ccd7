"""Statistics of the steps of a program: durations by phase, per process, in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

BINS_PER_OCTAVE: Final = 8
"""Histogram bins per factor of 2. A percentile deviates by at most 2^(1/16) - 1 = 4.4 %."""
MIN_BIN, MAX_BIN = -160, 160
"""First and last bin: 1 microsecond and 12 days. Shorter and longer durations are counted in these bins."""
STANDARD_PHASES: Final = (
    "step",
    "data",
    "copy",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "checkpoint",
    "evaluation",
)
"""Phases that the rules know.

`step` is a whole iteration and contains the time of the phases inside it. Checkpoint and evaluation may run
inside or between steps. All other names are sections of the user.
"""

Hint = bool | int | float | str


def duration_bin(duration_s: float) -> int:
    """Return the number of the histogram bin to which a duration belongs."""
    if duration_s <= 0:
        return MIN_BIN
    number = math.floor(BINS_PER_OCTAVE * math.log2(duration_s))
    if number < MIN_BIN:
        return MIN_BIN
    return number if number <= MAX_BIN else MAX_BIN


def bin_seconds(number: int) -> float:
    """Return the geometric centre of a histogram bin in seconds."""
    return float(2.0 ** ((number + 0.5) / BINS_PER_OCTAVE))


@dataclass(frozen=True, slots=True)
class PhaseStatistics:
    """Statistics of the durations of one phase.

    The statistics cover one process, or several processes after merging.

    Attributes:
        count: number of durations.
        sum_s: sum of the durations in seconds.
        sum_squares_s2: sum of the squares of the durations.
        histogram: number of durations by bin, see `duration_bin`.
    """

    count: int = 0
    sum_s: float = 0.0
    sum_squares_s2: float = 0.0
    histogram: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, durations_s: Iterable[float]) -> PhaseStatistics:
        """Return the statistics of a phase, given its durations in seconds."""
        durations = list(durations_s)
        histogram: dict[int, int] = {}
        for duration in durations:
            number = duration_bin(duration)
            histogram[number] = histogram.get(number, 0) + 1
        squares = math.fsum(duration * duration for duration in durations)
        return cls(len(durations), math.fsum(durations), squares, histogram)

    def merged(self, other: PhaseStatistics) -> PhaseStatistics:
        """Return the statistics of the durations of this object and `other` together."""
        histogram = dict(self.histogram)
        for number, count in other.histogram.items():
            histogram[number] = histogram.get(number, 0) + count
        return PhaseStatistics(
            self.count + other.count,
            self.sum_s + other.sum_s,
            self.sum_squares_s2 + other.sum_squares_s2,
            histogram,
        )

    @property
    def mean_s(self) -> float | None:
        """Mean duration in seconds; None without durations."""
        return self.sum_s / self.count if self.count else None

    @property
    def deviation_s(self) -> float | None:
        """Standard deviation of the durations in seconds; None without durations."""
        if not self.count:
            return None
        mean = self.sum_s / self.count
        return math.sqrt(max(0.0, self.sum_squares_s2 / self.count - mean * mean))

    def percentile_s(self, percent: float) -> float | None:
        """Return a percentile of the durations in seconds; None without durations.

        The relative error is at most 4.4 %.

        Args:
            percent: 0 to 100.
        """
        total = sum(self.histogram.values())
        if not total:
            return None
        rank = max(1, math.ceil(total * percent / 100))
        passed = 0
        for number in sorted(self.histogram):
            passed += self.histogram[number]
            if passed >= rank:
                return bin_seconds(number)
        return bin_seconds(max(self.histogram))


@dataclass(frozen=True, slots=True)
class StepOutlier:
    """A step that took much longer than the steps before it.

    Attributes:
        at_s: start of the step, Unix seconds.
        duration_s: duration of the step.
        expected_s: rolling mean of the durations of the previous steps.
        phase: phase with the largest part of the excess over `expected_s`; empty if unknown.
    """

    at_s: float
    duration_s: float
    expected_s: float
    phase: str = ""


@dataclass(frozen=True, slots=True)
class StepIntervals:
    """Steps of a process over time, as sums over consecutive intervals of equal length.

    Attributes:
        start_s: start of the first interval, Unix seconds.
        interval_s: seconds per interval.
        steps: steps that ended in each interval.
        step_seconds: seconds that the process spent in phase `step` in each interval.
        data_seconds: seconds that the process spent in phase `data` in each interval.
    """

    start_s: float
    interval_s: float
    steps: array[float]
    step_seconds: array[float]
    data_seconds: array[float]

    def coarsened(self) -> StepIntervals:
        """Return the same steps summed over intervals of twice the length."""
        columns = (_pair_sums(column) for column in (self.steps, self.step_seconds, self.data_seconds))
        return StepIntervals(self.start_s, self.interval_s * 2, *columns)


def _pair_sums(column: Sequence[float]) -> array[float]:
    return array("d", (math.fsum(column[index : index + 2]) for index in range(0, len(column), 2)))


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Steps of one process of a job.

    Attributes:
        node: node of the process.
        rank: global rank; None if the program has no ranks.
        gpu: index of the process's GPU on the node; None if the index is unknown or the process has no GPU.
        pid: process id on the node.
        phases: statistics by phase, see `STANDARD_PHASES`.
        samples: number of samples that this process processed; None if unknown.
        outlier_count: number of all outliers. `outliers` may contain fewer.
        outlier_excess_s: seconds by which all outliers together exceeded the expected durations.
        outliers: the largest outliers, in order of time.
        intervals: steps over time; None if unknown.
        hints: values that callbacks reported, by name. The settings of the program are: batch_size,
            num_workers, pin_memory, persistent_workers, world_size, backend, dataset_samples and
            compute_threads (threads of the process for computation on CPUs). Measured are: process_cpu_s
            (CPU time of the process without its loader workers), loader_starts (number of epochs that began
            with loader workers), loader_start_s (total wait for the first batches of these epochs, in
            seconds) and ready_batch_s (mean time in seconds to receive a batch that had arrived before the
            program requested it). marks_checkpoints states whether a framework reports every checkpoint that
            it writes.
    """

    node: str
    rank: int | None
    gpu: int | None
    pid: int
    phases: Mapping[str, PhaseStatistics]
    samples: float | None = None
    outlier_count: int = 0
    outlier_excess_s: float = 0.0
    outliers: tuple[StepOutlier, ...] = ()
    intervals: StepIntervals | None = None
    hints: Mapping[str, Hint] = field(default_factory=dict)
