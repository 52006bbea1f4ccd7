"""Seconds of a step as an affine function of its samples, fitted while a program runs. Pure.

The fit is robust (Theil and Sen: median of the slopes between pairs of observations), because single windows
are disturbed by other programs. A lasting change, such as a new power cap, discards the older observations.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_WINDOWS: Final = 12
"""Number of observations that a fit uses at most."""
DRIFT_RATIO: Final = 1.2
"""A rank has changed if two windows in a row differ from the fit by this factor in the same direction."""


@dataclass(slots=True)
class StepTimeFit:
    """Affine function fitted to the observations of one rank.

    Attributes:
        fixed_s: seconds of a step that do not depend on its samples.
        sample_s: seconds per sample; None before the first observation.
        changes: how many lasting changes were detected.
    """

    fixed_s: float = 0.0
    sample_s: float | None = None
    changes: int = 0
    _windows: collections.deque[tuple[int, float]] = field(
        default_factory=lambda: collections.deque(maxlen=MAX_WINDOWS)
    )
    _suspect: tuple[int, float] | None = None

    def add(self, samples: int, seconds: float) -> bool:
        """Add the median seconds of steps with this number of samples, and fit again.

        Args:
            samples: samples per step, above 0.
            seconds: seconds per step, above 0.

        Returns:
            Whether the observation confirms a lasting change of the rank.
        """
        ratio = self._ratio(samples, seconds)
        deviates = self._is_predictable(samples) and not 1 / DRIFT_RATIO <= ratio <= DRIFT_RATIO
        if deviates and self._suspect is None:
            self._suspect = (samples, seconds)  # a second window will confirm a change or show an outlier
            return False
        changed = False
        if deviates and self._suspect is not None:
            first = self._ratio(*self._suspect)
            changed = (first > 1) == (ratio > 1)
            if changed:
                self._rescale(ratio)  # the first window may have begun before the change
        self._suspect = None
        self._windows.append((samples, seconds))
        self._fit()
        return changed

    def seconds(self, samples: int) -> float | None:
        """Return the expected seconds of a step; None before the first observation."""
        return None if self.sample_s is None else self.fixed_s + self.sample_s * samples

    def to_json(self) -> list[object]:
        """Return the state for a checkpoint."""
        return [self.fixed_s, self.sample_s, self.changes, [list(entry) for entry in self._windows]]

    @classmethod
    def from_json(cls, state: Sequence[object]) -> StepTimeFit:
        """Return the fit with a state from `to_json`."""
        fixed_s, sample_s, changes, windows = state
        assert isinstance(fixed_s, float) and isinstance(changes, int) and isinstance(windows, list)
        fit = cls(fixed_s, sample_s if isinstance(sample_s, float) else None, changes)
        fit._windows.extend((int(count), float(seconds)) for count, seconds in windows)
        return fit

    def _is_predictable(self, samples: int) -> bool:
        """Return whether the fit holds for this number of samples: two sizes separate its coefficients."""
        sizes = [count for count, _ in self._windows]
        return any(not _differ(samples, count) or _differ(sizes[0], count) for count in sizes)

    def _ratio(self, samples: int, seconds: float) -> float:
        expected = self.seconds(samples)
        return seconds / expected if expected else 1.0

    def _rescale(self, ratio: float) -> None:
        """Discard the observations from before a change. Both coefficients change by the same factor."""
        self.changes += 1
        self._windows.clear()
        self.fixed_s *= ratio
        self.sample_s = None if self.sample_s is None else self.sample_s * ratio

    def _fit(self) -> None:
        windows = list(self._windows)
        slopes = [
            (seconds - other_s) / (count - other)
            for index, (count, seconds) in enumerate(windows)
            for other, other_s in windows[:index]
            if _differ(count, other)
        ]
        if slopes:
            slope = statistics.median(slopes)
            fixed_s = statistics.median(seconds - slope * count for count, seconds in windows)
            if slope > 0 and fixed_s >= 0:
                self.fixed_s, self.sample_s = fixed_s, slope
                return
        # Too few sizes to separate the coefficients: keep the ratio of the fixed time to the time per sample.
        previous = self.fixed_s / self.sample_s if self.sample_s else 0.0
        if slopes:
            previous = 0.0
        self.sample_s = statistics.median(seconds / (previous + count) for count, seconds in windows)
        self.fixed_s = previous * self.sample_s


def _differ(count: int, other: int) -> bool:
    """Return whether two numbers of samples differ enough to tell the slope."""
    return abs(count - other) * 10 > max(count, other)
