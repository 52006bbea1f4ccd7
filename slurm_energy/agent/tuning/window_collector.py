"""Measurement windows: wait after each change until the hardware settles, then measure speed and power."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_energy.agent.metering.job_meter import JobMeter
from slurm_energy.agent.tuning.job_power import (
    MeterReading,
    mean_gpu_watts,
    package_watts,
    total_watts,
    watts_between,
)
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.progress.estimate import Progress
from slurm_energy.tuning.progress.tracker import ProgressTracker
from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow


@dataclass(frozen=True, slots=True)
class WindowLengths:
    """Lengths, in seconds, that determine when a measurement window starts and ends.

    A search tries operating points. When it has settled on an operating point, it keeps the point; the
    point is then held.

    Attributes:
        settle_s: time after a change of the operating point that is not measured. In this time the
            hardware changes its clocks, and power sensors still average over the last second.
        min_s: minimum length of a window.
        max_s: length at which a window ends even if the speed is not exact enough.
        patience_s: length at which a window without any progress ends.
        hold_s: minimum length of a window while the operating point is held.
        hold_patience_s: length at which a window without any progress ends while the operating point is
            held.
        relative_error: maximum relative error of the speed for a window to end before `max_s`; a fraction
            of the speed, not a length.
    """

    settle_s: float = 2.0
    min_s: float = 4.0
    max_s: float = 15.0
    patience_s: float = 20.0
    hold_s: float = 2.0
    hold_patience_s: float = 60.0
    relative_error: float = 0.008


DEFAULT_LENGTHS = WindowLengths()
_EXTENSION = 1.5
"""A window whose speed is unknown or not exact is extended by this factor."""
_UNITS_IN_HOLD = 3
_CLEAR_SLOWDOWN = 0.05
"""Logarithm of probe time over untuned time. Above this by three standard errors, the window ends."""
_CLEAR_SLOWDOWN_IN_CYCLE = 0.15
"""`_CLEAR_SLOWDOWN` of a job with regular pauses, whose power is known only after a whole cycle."""
_CYCLES_OF_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class MeasuredInterval:
    """Result of the measurement of a job over a complete time interval.

    Attributes:
        window: speed and power of the job; None if energy may be missing. If the speed is unknown, the
            `source` of the window (how progress was determined) is `none`.
        watts: mean power by component.
        has_progress: whether the speed is known.
    """

    window: ProgressWindow | None
    watts: dict[str, float]
    has_progress: bool


class WindowCollector:
    """Collector of the measurement windows of one job, one after another.

    Args:
        tracker: progress of the job, with times in seconds since boot.
        lengths: lengths that determine when a window starts and ends.

    Attributes:
        package_count: number of processor packages of the job.
    """

    def __init__(self, tracker: ProgressTracker, lengths: WindowLengths = DEFAULT_LENGTHS) -> None:
        self.package_count = 1
        self._tracker = tracker
        self._lengths = lengths
        self._point = UNTUNED
        self._not_before_s = -math.inf
        self._start: MeterReading | None = None
        self._check_at_s = 0.0
        self._untuned_rate: float | None = None

    def restart(self, point: OperatingPoint, now_s: float, settle_s: float | None = None) -> None:
        """Discard the current window and start the next window at another operating point.

        Args:
            point: operating point that is in force from now on.
            now_s: time of the change in seconds since boot.
            settle_s: seconds after the change that are not measured; None for `WindowLengths.settle_s`.
        """
        self._point, self._start = point, None
        self._not_before_s = now_s + (self._lengths.settle_s if settle_s is None else settle_s)

    def add_sample(self, now_s: float, meter: JobMeter, *, holding: bool = False) -> MeasuredInterval | None:
        """Process a sample, and return the measured interval that ends with it, if any.

        An interval is a window in which the speed and the power of the job are measured. Return None if no
        interval ends with this sample.

        Args:
            now_s: time of the sample in seconds since boot.
            meter: energy meter of the job.
            holding: whether the search has settled on an operating point and keeps it. Short windows are then
                enough.
        """
        if now_s < self._not_before_s:
            return None
        start = self._start
        if start is None:
            self._begin(MeterReading.of(meter, now_s))
            return None
        length_s = now_s - start.time_s
        slow = self._slow_rate(start.time_s, now_s, holding=holding)
        if slow is not None:
            return self._interval(start, MeterReading.of(meter, now_s), slow)
        if self._tracker.is_paused(start.time_s):
            self._begin(MeterReading.of(meter, now_s))
            return None
        if length_s < max(self._check_at_s, self._needed_s(holding=holding)):
            return None
        progress = self._tracker.rate(start.time_s, now_s)
        if self._is_extended(progress, start.time_s, now_s, holding=holding):
            self._check_at_s = 0.0 if self._tracker.cycle_s is not None else _EXTENSION * length_s
            return None
        return self._interval(start, MeterReading.of(meter, now_s), progress)

    def _slow_rate(self, start_s: float, now_s: float, *, holding: bool) -> Progress | None:
        """Return the rate of a job that has clearly become slow; None for other jobs.

        The caller then ends the measurement window of the job early.

        The present rate of the job is compared with its earlier rate at the same operating point. While an
        operating point is tried, the present rate is also compared with the rate of the last untuned window.
        Without the early end, a program with long steps would lose minutes at a bad point. A change of the
        program in this time would also be noticed only at the end of the window.
        """
        if self._point == UNTUNED and not holding:
            return None
        slow = self._tracker.sudden_slowdown(self._not_before_s, now_s)
        if slow is not None or holding or self._untuned_rate is None:
            return slow
        rate = self._tracker.reported_rate(start_s, now_s)
        if rate is None:
            return None
        excess = math.log(self._untuned_rate / rate.units_per_s)
        clear = _CLEAR_SLOWDOWN_IN_CYCLE if rate.spans_cycles else _CLEAR_SLOWDOWN
        return rate if excess > clear + 3.0 * rate.relative_error else None

    def _interval(
        self, start: MeterReading, end: MeterReading, progress: Progress | None
    ) -> MeasuredInterval:
        """End the current measurement interval, and start the next one.

        Args:
            start: reading of the energy meter at the start of the interval.
            end: reading at the end of the interval.
            progress: progress of the job in the interval; None if unknown.

        Returns:
            The measurement of the ended interval.
        """
        self._begin(end)
        watts = watts_between(start, end)
        return MeasuredInterval(self._window(start, end, progress, watts), watts, progress is not None)

    def _begin(self, reading: MeterReading) -> None:
        self._start, self._check_at_s = reading, 0.0

    def _needed_s(self, *, holding: bool) -> float:
        """Return the minimum length in seconds of a measurement window.

        A shorter window could not determine the speed of the job.
        """
        tracker, lengths = self._tracker, self._lengths
        if tracker.cycle_s is not None:
            return max(lengths.hold_s, tracker.cycle_s / 2)
        if holding and tracker.source is ProgressSource.REPORTED:
            return max(lengths.hold_s, _UNITS_IN_HOLD * (tracker.unit_s or 0.0))
        return max(lengths.min_s, min(tracker.window_s, self._patience_s(holding=holding)))

    def _patience_s(self, *, holding: bool) -> float:
        """Return the length in seconds after which a measurement window ends if no progress was seen."""
        lengths = self._lengths
        patience_s = lengths.hold_patience_s if holding else lengths.patience_s
        cycles_s = _CYCLES_OF_PATIENCE * (self._tracker.cycle_s or 0.0)
        return max(patience_s, _UNITS_IN_HOLD * (self._tracker.unit_s or 0.0), cycles_s)

    def _is_extended(self, progress: Progress | None, start_s: float, now_s: float, *, holding: bool) -> bool:
        lengths, length_s = self._lengths, now_s - start_s
        if progress is None:
            return length_s < self._patience_s(holding=holding) or self._tracker.awaits_report(now_s)
        inexact = not holding and progress.relative_error > lengths.relative_error
        return inexact and length_s < max(lengths.max_s, self._tracker.window_s)

    def _window(
        self, start: MeterReading, end: MeterReading, progress: Progress | None, watts: dict[str, float]
    ) -> ProgressWindow | None:
        """Return the speed and power of the job between two readings; None if energy may be missing."""
        power_watts = total_watts(watts)
        if power_watts <= 0 or end.uncertain_s > start.uncertain_s:
            return None
        if progress is None:
            progress = Progress(0.0, math.inf, ProgressSource.NONE)
        elif self._point == UNTUNED:
            part = self._tracker.reported_rate(start.time_s, end.time_s)
            self._untuned_rate = None if part is None else part.units_per_s
        return ProgressWindow(
            point=self._point,
            start_s=start.time_s,
            duration_s=end.time_s - start.time_s,
            units_per_s=progress.units_per_s,
            relative_error=progress.relative_error,
            watts=power_watts,
            source=progress.source,
            gpu_watts=mean_gpu_watts(watts),
            package_watts=package_watts(watts, self.package_count),
            spans_cycles=progress.spans_cycles,
        )
