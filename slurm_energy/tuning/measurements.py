"""Measurements of a tuning search: speed and power of a job, averaged over measurement windows.

The module also follows how speed and power of the untuned job (reference) change over time.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy.tuning.progress_window import ProgressWindow

_MIN_RELATIVE_ERROR = 0.001
_POWER_ERROR = 0.01
_MIN_POWER_ERROR = 0.003
_DRIFT_SIGMA = 2.5
_PRIOR_WINDOWS = 6.0
_MAX_SQUARE = 16.0
_REFERENCE_AGE_WINDOWS = 40
_AGE_GROWTH, _MAX_AGE_FACTOR = 1.5, 4.0
MAX_BLOCKS = 32
"""Maximum number of blocks of a reference track. Each measurement is compared with all blocks."""


@dataclass(slots=True)
class SpeedMeasurement:
    """Mean speed and power of a job over all measurement windows at one operating point.

    Attributes:
        duration_s: total duration of the measurement windows.
        units: units of work that were done in the measurement windows.
        joules: energy that was used in the measurement windows.
        error_units: standard error of `units`.
        windows: number of measurement windows.
        center_s: sum of the measurement windows' mid times weighted by their durations.
    """

    duration_s: float = 0.0
    units: float = 0.0
    joules: float = 0.0
    error_units: float = 0.0
    windows: int = 0
    center_s: float = 0.0

    def add(self, window: ProgressWindow) -> None:
        """Add a measurement window to the measurement."""
        units = window.units_per_s * window.duration_s
        self.duration_s += window.duration_s
        self.units += units
        self.joules += window.watts * window.duration_s
        self.error_units = math.hypot(self.error_units, units * window.relative_error)
        self.windows += 1
        self.center_s += window.duration_s * (window.start_s + window.duration_s / 2)

    @property
    def units_per_s(self) -> float:
        """Mean speed over the measurement windows, in units of work per second."""
        return self.units / self.duration_s

    @property
    def window_s(self) -> float:
        """Mean duration of a measurement window."""
        return self.duration_s / self.windows

    @property
    def watts(self) -> float:
        """Mean power over the measurement windows."""
        return self.joules / self.duration_s

    @property
    def mid_s(self) -> float:
        """Mean of the measurement windows' mid times, weighted by their durations."""
        return self.center_s / self.duration_s

    @property
    def relative_error(self) -> float:
        """Standard error of the speed divided by the speed."""
        return max(self.error_units / self.units, _MIN_RELATIVE_ERROR)

    @property
    def power_error(self) -> float:
        """Standard error of the power divided by the power."""
        return max(_POWER_ERROR / math.sqrt(self.windows), _MIN_POWER_ERROR)

    def joined(self, other: SpeedMeasurement) -> SpeedMeasurement:
        """Merge this measurement with another one at the same operating point.

        The error of the result grows with the difference between the two speeds.

        Args:
            other: the other measurement.
        """
        units, windows = self.units + other.units, self.windows + other.windows
        difference = abs(math.log(self.units_per_s / other.units_per_s))
        return SpeedMeasurement(
            self.duration_s + other.duration_s,
            units,
            self.joules + other.joules,
            units * difference / 2 / math.sqrt(windows),
            windows,
            self.center_s + other.center_s,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as a dict for JSON."""
        return dataclasses.asdict(self)


class NoiseScale:
    """Ratio of the scatter of measurement windows at one operating point to the windows' stated errors.

    Windows of a program with checkpoints or evaluations scatter more than windows of a steady program. The
    stated errors of later windows are multiplied by this ratio. The ratio is never below 1.
    """

    def __init__(self, squares: float = _PRIOR_WINDOWS, windows: float = _PRIOR_WINDOWS) -> None:
        """Start with a ratio of 1.

        With this ratio, the errors that the measurement windows state are used unchanged.
        """
        self._squares, self._windows = squares, windows

    @property
    def factor(self) -> float:
        """Factor, at least 1, by which the error of each measurement window is multiplied.

        The error is the one that the window states. The factor is above 1 if windows at the same operating
        point scatter more than their errors suggest.
        """
        return max(1.0, math.sqrt(self._squares / self._windows))

    def add(self, before: SpeedMeasurement, window: ProgressWindow) -> None:
        """Learn from a new measurement window how much windows scatter.

        A measurement window is an interval in which the speed of a job was measured. Each window states an
        error of its speed. The real scatter of windows may be larger. The class keeps the ratio of the real
        scatter to the stated errors (`factor`), and this method updates the ratio. The stated error of the
        new window is already multiplied by the present ratio. All windows belong to the same operating point
        (hardware settings).

        Args:
            before: mean of the earlier windows.
            window: the new window.
        """
        if not before.windows:
            return
        deviation = math.log(window.units_per_s / before.units_per_s)
        error = math.hypot(window.relative_error, before.relative_error)
        self._squares += min((deviation / error) ** 2, _MAX_SQUARE) * self.factor**2
        self._windows += 1

    def widen(self, one: SpeedMeasurement, other: SpeedMeasurement) -> None:
        """Adapt the noise factor to two measurements that should agree but differ.

        Both measurements are of the same operating point. The factor multiplies the errors that the
        measurements state. It is increased as far as necessary to explain the difference. It is never
        reduced.
        """
        deviation = abs(math.log(one.units_per_s / other.units_per_s)) / 2
        stated = other.relative_error * math.sqrt(other.windows) / self.factor
        self._squares = max(self._squares, self._windows * (deviation / stated) ** 2)


class ReferenceCheck:
    """A repeated measurement of the untuned job, which shows whether the job has changed.

    The measured speed and power of the untuned job are the reference for all other measurements.

    Attributes:
        block: measurement over the measurement windows of this check.
        suspect: measurement window that contradicted the expectation and thereby caused the check; None for
            another cause.
        precise: whether the untuned job is measured as accurately as the first time.
    """

    def __init__(self, suspect: ProgressWindow | None, precise: bool) -> None:
        """Start a repeated measurement of the untuned job, which shows whether the job has changed.

        Args:
            suspect: measurement window that contradicted the expectation and thereby caused the check; None
                for another cause.
            precise: whether the untuned job is measured as accurately as the first time.
        """
        self.block = SpeedMeasurement()
        self.suspect = suspect
        self.precise = precise


class ReferenceTrack:
    """The untuned speed and power of a job over time, to which tuned measurements are compared.

    A block is a measurement during consecutive measurement windows without tuning. Blocks that agree are
    averaged. If blocks differ, the untuned speed or power drifts. The value at a given time is then
    interpolated between the blocks before and after this time. If there are too many blocks, the two oldest
    are joined.
    """

    def __init__(self, blocks: Iterable[SpeedMeasurement] = ()) -> None:
        """Create the record of a job's untuned speed over time.

        The argument `blocks` contains earlier measurements of this speed in order of time.
        """
        self.blocks = list(blocks)
        self._join_oldest()

    def open_block(self) -> SpeedMeasurement:
        """Return the measurement of the untuned job that is still in progress.

        The caller adds further measurement windows to it. If there is no measurement yet, create an empty
        one.
        """
        if not self.blocks:
            self.blocks.append(SpeedMeasurement())
        return self.blocks[-1]

    def append(self, block: SpeedMeasurement) -> None:
        """Add a finished measurement of the untuned job."""
        self.blocks.append(block)
        self._join_oldest()

    def _join_oldest(self) -> None:
        while len(self.blocks) > MAX_BLOCKS:
            first, second = self.blocks[:2]
            joined = first.joined(second)
            joined.error_units = math.hypot(joined.error_units, first.error_units, second.error_units)
            self.blocks[:2] = [joined]

    def is_old(self, windows: int, remaining_windows: float) -> bool:
        """Return whether the untuned speed and power (reference) of a job should be measured again.

        The caller has seen no sign of a change. A change can remain hidden: under a power limit, two phases
        of a job can have the same speed and power although their untuned speeds differ.

        Args:
            windows: number of measurement windows since the last measurement of the reference.
            remaining_windows: expected number of measurement windows until the end of the job.
        """
        age = _REFERENCE_AGE_WINDOWS * min(_AGE_GROWTH ** (len(self.blocks) - 1), _MAX_AGE_FACTOR)
        return windows >= age and remaining_windows > _REFERENCE_AGE_WINDOWS / 2

    def at(self, time_s: float) -> tuple[float, float, float]:
        """Return the untuned reference of the job at a given time.

        The result is the logarithm of the speed, the standard error of this logarithm, and the logarithm of
        the power.
        """
        blocks = [block for block in self.blocks if block.windows]
        if self._is_constant(blocks):
            precisions = [1.0 / block.relative_error**2 for block in blocks]
            total = sum(precisions)
            rate = sum(p * math.log(b.units_per_s) for p, b in zip(precisions, blocks, strict=True)) / total
            power = sum(b.joules for b in blocks) / sum(b.duration_s for b in blocks)
            return rate, max(total**-0.5, _MIN_RELATIVE_ERROR), math.log(power)
        return _interpolated(blocks, time_s)

    @staticmethod
    def _is_constant(blocks: Sequence[SpeedMeasurement]) -> bool:
        return all(
            abs(math.log(one.units_per_s / other.units_per_s))
            <= _DRIFT_SIGMA * math.hypot(one.relative_error, other.relative_error)
            for one, other in itertools.pairwise(blocks)
        )


def _interpolated(blocks: Sequence[SpeedMeasurement], time_s: float) -> tuple[float, float, float]:
    later = next((number for number, block in enumerate(blocks) if block.mid_s >= time_s), len(blocks) - 1)
    after, before = blocks[later], blocks[max(later - 1, 0)]
    span = after.mid_s - before.mid_s
    share = 1.0 if span <= 0 else min(max((time_s - before.mid_s) / span, 0.0), 1.0)
    rate = (1 - share) * math.log(before.units_per_s) + share * math.log(after.units_per_s)
    power = (1 - share) * math.log(before.watts) + share * math.log(after.watts)
    error = math.hypot((1 - share) * before.relative_error, share * after.relative_error)
    return rate, error, power
