"""Samples of a job's power and activity, kept for a limited time, and their means over windows."""

from __future__ import annotations

import bisect
import collections
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.tuning.progress.estimate import relative_error_of_mean

MAX_SAMPLES: Final = 12_000
"""Samples kept per job: 20 minutes at 10 Hz."""
_BLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """Readings of a job at one time. None means unknown.

    Attributes:
        time_s: seconds of a monotonic clock.
        watts: mean power of the job since the previous sample.
        utilisation: share of time in which the job's GPUs were busy, 0 to 1.
        instructions: instructions that the job's processes retired since an arbitrary start.
        activity: work per second by kind of work, see `ProgressTracker.sample`.
    """

    time_s: float
    watts: float | None
    utilisation: float | None
    instructions: float | None
    activity: Mapping[str, float]


class SampleHistory:
    """The latest samples of a job in the order of time."""

    def __init__(self) -> None:
        self._samples: collections.deque[Sample] = collections.deque(maxlen=MAX_SAMPLES)

    def add(self, sample: Sample) -> None:
        """Store a sample. A sample that is not later than the previous sample is ignored."""
        if not self._samples or sample.time_s > self._samples[-1].time_s:
            self._samples.append(sample)

    def between(self, start_s: float, end_s: float) -> list[Sample]:
        """Return the samples of the job between two times.

        A sample at `start_s` itself is left out, because it describes the time before `start_s`.
        """
        samples = self._samples
        recent = list(itertools.takewhile(lambda sample: sample.time_s > start_s, reversed(samples)))
        recent.reverse()
        return recent[: bisect.bisect_right(recent, end_s, key=lambda sample: sample.time_s)]


def series(samples: list[Sample], value: Callable[[Sample], float | None]) -> tuple[list[float], list[float]]:
    """Return times and values of the samples with a known and finite value."""
    pairs = [(sample.time_s, found) for sample in samples if (found := value(sample)) is not None]
    pairs = [(time_s, number) for time_s, number in pairs if math.isfinite(number)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def mean_and_error(values: list[float]) -> tuple[float, float] | None:
    """Return the mean of a series and its relative standard error; None for fewer than two values.

    The error is computed from the means of up to eight blocks, because neighbouring samples are correlated.
    """
    if len(values) < 2:
        return None
    blocks = min(_BLOCKS, len(values) // 2) or 1
    edges = [index * len(values) // blocks for index in range(blocks + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    mean = math.fsum(values) / len(values)
    return (mean, relative_error_of_mean(means)) if mean > 0 else None


def counter_rate(times: list[float], counts: list[float]) -> tuple[float, float] | None:
    """Return the mean rate of a counter and the rate's relative standard error; None if unknown.

    A counter that decreased was reset. The measurement window then has no rate.
    """
    if len(counts) < 3 or any(b < a for a, b in itertools.pairwise(counts)):
        return None
    intervals = zip(itertools.pairwise(times), itertools.pairwise(counts), strict=True)
    found = mean_and_error([(late - early) / (end - start) for (start, end), (early, late) in intervals])
    rate = (counts[-1] - counts[0]) / (times[-1] - times[0])
    return (rate, found[1]) if found is not None and rate > 0 else None
