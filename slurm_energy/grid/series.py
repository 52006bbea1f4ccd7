"""Carbon intensity or price of electricity as a step function of time, and its exact integral.

The function may have gaps, which are times without a known value.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

Sample = tuple[float, float, float]
"""Start and end of validity (Unix time in seconds), and the value in internal units, see `units`."""

DEFAULT_STEP_S: Final = 3600.0
_AGE_STEPS: Final = 2.0


@dataclass(frozen=True, slots=True)
class SeriesSource:
    """Origin of a series. Every figure that is computed from the series states this origin.

    Attributes:
        provider: provider such as `entsoe`, or `constant`, `csv`, `yearly`.
        zone: zone of the grid in the provider's notation; empty if the provider has none.
        detail: further facts for readers, such as the year and publisher of a yearly factor, or `marginal`.
    """

    provider: str
    zone: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        """Name of the source in messages to users, such as `entsoe DE` or `yearly DE (2023)`.

        The name consists of the provider, the zone and a detail in brackets.
        """
        name = f"{self.provider} {self.zone}".rstrip()
        return f"{name} ({self.detail})" if self.detail else name


@dataclass(frozen=True, slots=True)
class SeriesIntegral:
    """Integral of a carbon intensity or price over a span of time.

    Attributes:
        value_seconds: integral of the value over the times at which it is known.
        known_s: seconds in which the value is known.
    """

    value_seconds: float
    known_s: float


class GridSeries:
    """Carbon intensity or price over time.

    A sample is valid from its start to its end, but not after the start of the next sample. The value at
    times without a valid sample is unknown; the last value is not extended.

    Args:
        source: origin of the values.
        samples: samples in any order. If two samples have the same start, the later one in the sequence is
            used.
        resolution_s: time step that the provider states. None means the median distance of successive
            samples.
    """

    def __init__(
        self, source: SeriesSource, samples: Iterable[Sample], resolution_s: float | None = None
    ) -> None:
        by_start = {start: (end, value) for start, end, value in samples}
        starts = sorted(by_start)
        following = [*starts[1:], math.inf][: len(starts)]
        self.source = source
        self._starts: list[float] = starts
        self._ends = [min(by_start[start][0], after) for start, after in zip(starts, following, strict=True)]
        self._values = [by_start[start][1] for start in starts]
        if any(end <= start for start, end in zip(starts, self._ends, strict=True)):
            raise ValueError("a sample must end after it starts")
        if resolution_s is None and len(starts) > 1:
            resolution_s = usual_step_s(starts)
        self.resolution_s = resolution_s
        lengths = [end - start for start, end in zip(starts, self._ends, strict=True)]
        weighted = [value * length for value, length in zip(self._values, lengths, strict=True)]
        self._known_before = list(accumulate(lengths, initial=0.0))
        self._integral_before = list(accumulate(weighted, initial=0.0))

    @classmethod
    def constant(cls, source: SeriesSource, value: float) -> GridSeries:
        """Return a series whose value is the same at all times. The series has no time resolution."""
        return cls(source, [(-math.inf, math.inf, value)])

    @property
    def samples(self) -> Sequence[Sample]:
        """The samples in the order of their starts, without overlaps."""
        return list(zip(self._starts, self._ends, self._values, strict=True))

    @property
    def values(self) -> Sequence[float]:
        """The values of the carbon intensity or price, one per sample of the series."""
        return self._values

    @property
    def is_constant(self) -> bool:
        """Whether the series has the same value at all times."""
        return len(self._starts) == 1 and self._starts[0] == -math.inf and self._ends[0] == math.inf

    @property
    def end_s(self) -> float | None:
        """End of the last sample; None if there is no sample."""
        return self._ends[-1] if self._ends else None

    def at(self, time_s: float) -> float | None:
        """Return the value at a time; None if unknown."""
        row = bisect_right(self._starts, time_s) - 1
        return self._values[row] if row >= 0 and time_s < self._ends[row] else None

    def is_constant_between(self, start_s: float, end_s: float) -> bool:
        """Return whether the value is constant, or always unknown, from `start_s` to `end_s`."""
        first = bisect_right(self._starts, start_s) - 1
        last = bisect_left(self._starts, end_s) - 1
        if last > first:
            return False
        return first < 0 or end_s <= self._ends[first] or start_s >= self._ends[first]

    def integrate(self, start_s: float, end_s: float) -> SeriesIntegral:
        """Return the integral from a time to a later or equal time."""
        first = bisect_right(self._starts, start_s) - 1
        last = bisect_right(self._starts, end_s) - 1
        if last < 0:
            return SeriesIntegral(0.0, 0.0)
        if first == last:  # without the sums, so that the result is exact
            known_s = max(0.0, min(end_s, self._ends[last]) - start_s)
            return SeriesIntegral(self._values[last] * known_s, known_s)
        weighted, known_s = self._up_to(last, end_s)
        if first >= 0:
            before = self._up_to(first, start_s)
            weighted, known_s = weighted - before[0], known_s - before[1]
        return SeriesIntegral(weighted, known_s)

    def thinned(self, max_samples: int) -> GridSeries:
        """Return the series with at most about `max_samples` samples.

        The series is divided into longer time steps. The mean of each step replaces its samples. A step with
        a gap keeps its original samples, so that unknown times stay unknown.
        """
        if len(self._starts) <= max_samples:
            return self
        step_s = DEFAULT_STEP_S
        while (self._ends[-1] - self._starts[0]) / step_s > max_samples:
            step_s *= 2.0
        return GridSeries(self.source, self._means(step_s), step_s)

    def _means(self, step_s: float) -> Iterator[Sample]:
        """Yield the samples of the series in time steps of length `step_s`.

        A step without gaps yields one sample with its mean. Every other step yields its original samples.
        """
        spans = zip(self._starts, self._ends, strict=True)
        rows = {row for start, end in spans for row in range(int(start // step_s), int(end // step_s) + 1)}
        for row in sorted(rows):
            start_s, end_s = row * step_s, (row + 1) * step_s
            integral = self.integrate(start_s, end_s)
            if math.isclose(integral.known_s, step_s):
                yield start_s, end_s, integral.value_seconds / step_s
                continue
            first = max(0, bisect_right(self._starts, start_s) - 1)
            for sample in range(first, bisect_right(self._starts, end_s)):
                begin, until = max(start_s, self._starts[sample]), min(end_s, self._ends[sample])
                if begin < until:
                    yield begin, until, self._values[sample]

    def _up_to(self, row: int, time_s: float) -> tuple[float, float]:
        """Return two sums from the first sample to `time_s`: the integral, and the known seconds.

        The known seconds are the time for which the series has a value.

        Args:
            row: index of the last sample that starts at or before `time_s`.
            time_s: end of the sums.
        """
        known_s = min(time_s, self._ends[row]) - self._starts[row]
        return (
            self._integral_before[row] + self._values[row] * known_s,
            self._known_before[row] + known_s,
        )


def usual_step_s(starts: Sequence[float]) -> float:
    """Return the median distance of successive times, or an hour if there are fewer than two times."""
    if len(starts) < 2:
        return DEFAULT_STEP_S
    return statistics.median(after - before for before, after in pairwise(starts))


def with_ends(points: Sequence[tuple[float, float | None]], max_age_s: float | None = None) -> list[Sample]:
    """Convert ascending times with values to samples, each with a start, an end and a value.

    Args:
        points: ascending times with their values. If a value is None, the value is unknown from this time
            on.
        max_age_s: maximum seconds for which a value is valid; None means twice the median distance of
            successive times.
    """
    if max_age_s is None:
        max_age_s = _AGE_STEPS * usual_step_s([time_s for time_s, _ in points])
    following = [*(time_s for time_s, _ in points[1:]), math.inf][: len(points)]
    return [
        (time_s, min(time_s + max_age_s, after), value)
        for (time_s, value), after in zip(points, following, strict=True)
        if value is not None
    ]
