"""Seconds of a training step as an affine function of its samples, fitted while a program runs.

The fit is robust (Theil and Sen: median of the slopes between pairs of observations), because other
programs disturb single measurement windows. A lasting change, such as a new power cap, discards the older
observations.
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
"""A window that differs from the fit by this factor may show a lasting change."""
CONFIRMATIONS: Final = 3
"""Number of such windows in a row, all in the same direction, that confirm a change."""
_MIN_SIZE_RATIO: Final = 1.3
_MIN_WINDOWS: Final = 3
_MIN_IMPROVEMENT: Final = 0.6
"""A fixed time is assumed only if it reduces the median deviation to this part of it."""


@dataclass(slots=True)
class StepTimeFit:
    """Estimate of the step time of one rank: a fixed time plus a time per sample.

    The estimate is fitted to the observed step times of the rank.

    Attributes:
        fixed_s: seconds of a step that do not depend on the number of samples.
        sample_s: seconds per sample; None before the first observation.
        changes: number of lasting changes of the rank's step time that were detected.
    """

    fixed_s: float = 0.0
    sample_s: float | None = None
    changes: int = 0
    _windows: collections.deque[tuple[int, float]] = field(
        default_factory=lambda: collections.deque(maxlen=MAX_WINDOWS)
    )
    _suspects: list[float] = field(default_factory=list)

    def add(self, samples: int, seconds: float) -> bool:
        """Add the median duration of some training steps of equal size, and fit the step time again.

        Args:
            samples: samples per step, above 0.
            seconds: seconds per step, above 0.

        Returns:
            Whether the observation confirms that the speed of the rank has changed lastingly.
        """
        ratio = self._ratio(samples, seconds)
        changed = False
        if self._is_predictable(samples) and not 1 / DRIFT_RATIO <= ratio <= DRIFT_RATIO:
            if self._suspects and (self._suspects[-1] > 1) != (ratio > 1):
                self._suspects.clear()
            self._suspects.append(ratio)
            if len(self._suspects) < CONFIRMATIONS:
                return False  # the next windows will confirm a change or show an outlier
            changed = True
            # The first of these windows may have begun before the change.
            self._rescale(statistics.median(self._suspects[1:]))
        self._suspects.clear()
        self._windows.append((samples, seconds))
        self._fit()
        return changed

    def seconds(self, samples: int) -> float | None:
        """Return the expected seconds of a step; None before the first observation."""
        return None if self.sample_s is None else self.fixed_s + self.sample_s * samples

    def to_json(self) -> list[object]:
        """Return the state of the fit for a checkpoint of the training program."""
        return [self.fixed_s, self.sample_s, self.changes, [list(entry) for entry in self._windows]]

    @classmethod
    def from_json(cls, state: Sequence[object]) -> StepTimeFit:
        """Return a fit of the step time with the state that `to_json` returned."""
        fixed_s, sample_s, changes, windows = state
        assert isinstance(fixed_s, float) and isinstance(changes, int) and isinstance(windows, list)
        fit = cls(fixed_s, sample_s if isinstance(sample_s, float) else None, changes)
        fit._windows.extend((int(count), float(seconds)) for count, seconds in windows)
        return fit

    def _is_predictable(self, samples: int) -> bool:
        """Return whether the fitted step time is valid for a number of samples.

        Observations with two different numbers of samples are needed to separate the coefficients of the
        fit. With only one number of samples, the fit is valid for this number alone.
        """
        sizes = [count for count, _ in self._windows]
        return any(not _differ(samples, count) or _differ(sizes[0], count) for count in sizes)

    def _ratio(self, samples: int, seconds: float) -> float:
        expected = self.seconds(samples)
        return seconds / expected if expected else 1.0

    def _rescale(self, ratio: float) -> None:
        """React to a sudden change of the step time by the factor `ratio`.

        The observations before the change are discarded. Both coefficients of the fit are multiplied by
        `ratio`.
        """
        self.changes += 1
        self._windows.clear()
        self.fixed_s *= ratio
        self.sample_s = None if self.sample_s is None else self.sample_s * ratio

    def _fit(self) -> None:
        """Fit the time of a training step as a function of the number of samples.

        The fitted function is usually proportional to the number of samples. A fixed time is added only if
        the fit with it is much more accurate. Otherwise noise would appear as a fixed time, and the division
        of the batch among the ranks would fluctuate.
        """
        windows = list(self._windows)
        changed_s = self.fixed_s / self.sample_s if self.sample_s and len(windows) < _MIN_WINDOWS else 0.0
        # After a change, the ratio of the fixed time to the time per sample is kept.
        slope = statistics.median(seconds / (changed_s + count) for count, seconds in windows)
        candidates = [(changed_s * slope, slope)]
        slopes = [
            (seconds - other_s) / (count - other)
            for index, (count, seconds) in enumerate(windows)
            for other, other_s in windows[:index]
            if _differ(count, other)
        ]
        if slopes and len(windows) >= _MIN_WINDOWS:
            slope = statistics.median(slopes)
            fixed_s = statistics.median(seconds - slope * count for count, seconds in windows)
            if slope > 0 and fixed_s >= 0:
                candidates.append((fixed_s, slope))
        deviations = [self._deviation(*candidate) for candidate in candidates]
        is_affine = len(candidates) > 1 and deviations[1] < _MIN_IMPROVEMENT * deviations[0]
        self.fixed_s, self.sample_s = candidates[1 if is_affine else 0]

    def _deviation(self, fixed_s: float, sample_s: float) -> float:
        """Return the median relative deviation of the observed step times from a linear estimate.

        Args:
            fixed_s: fixed seconds per step.
            sample_s: seconds per sample.
        """
        return statistics.median(
            abs(seconds / (fixed_s + sample_s * count) - 1) for count, seconds in self._windows
        )


def _differ(count: int, other: int) -> bool:
    """Return whether two sizes of a batch differ enough to estimate how the step time depends on the size."""
    return max(count, other) > _MIN_SIZE_RATIO * min(count, other)
