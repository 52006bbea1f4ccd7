"""Guards of the tuning search of a job.

They detect that the speed of the job has changed, and limit the losses that the search may cause in a run.
"""

from __future__ import annotations

import math

from slurm_energy.tuning.objective import TIME_EXPONENTS, Objective
from slurm_energy.tuning.progress_window import ProgressWindow

_ALLOWANCE = 0.5
_THRESHOLD = 5.0
_MAX_STEP = 3.0
_SURPRISE = 4.0
_MAX_LOSS = 0.005
_MIN_CONTRADICTIONS = 5
_WINDOWS_PER_CONTRADICTION = 15
_MAX_UNIT_CHANGES = 4
_MIN_REMAINING_WINDOWS, _MIN_REMAINING_S = 20.0, 600.0
_MAX_OVERRUN = 1.1
"""If a job has run for more than this multiple of its expected duration (in untuned time), the expected
duration counts as unknown."""


class ChangeDetector:
    """Two-sided cumulative sum test for a change of a job's speed between measurement windows.

    The test uses the logarithm of the speed.

    Attributes:
        min_change: relative change below which a window is no evidence of a change, whatever its error.
    """

    def __init__(self, min_change: float = 0.02) -> None:
        """Start without evidence of a change."""
        self.min_change = min_change
        self._rising = 0.0
        self._falling = 0.0

    def reset(self) -> None:
        """Discard the collected evidence that the behaviour of a program has changed."""
        self._rising = self._falling = 0.0

    def add(self, residual: float, error: float) -> bool:
        """Add a measurement window and return whether the job's speed has changed.

        Args:
            residual: measured minus expected logarithm of the speed.
            error: standard error of the residual.
        """
        scaled = residual / math.hypot(error, self.min_change / 2)
        step = min(max(scaled, -_MAX_STEP), _MAX_STEP)
        self._rising = max(0.0, self._rising + step - _ALLOWANCE)
        self._falling = max(0.0, self._falling - step - _ALLOWANCE)
        return max(self._rising, self._falling) > _THRESHOLD


def is_surprise(residual: float, error: float, min_change: float) -> bool:
    """Return whether a single measurement window contradicts the expectation.

    Args:
        residual: measured minus expected logarithm of the speed or power.
        error: standard error of the residual.
        min_change: relative change that is never surprising.
    """
    return abs(residual) > max(min_change, _SURPRISE * error)


class RegularityGuard:
    """Detection of jobs whose speed fluctuates too much for tuning.

    A possible reason for fluctuations is frequent checkpoints.

    The speed of a job is measured in windows (intervals of time). If the speed fluctuates, many windows
    differ from the expected speed although the job has not changed. The measured effect of a setting then
    depends on which windows contain a checkpoint.
    """

    def __init__(self) -> None:
        """Start without any measurement window of the job. All counters are zero."""
        self._windows = 0
        self._contradictions = 0
        self._changes = 0

    def begin_units(self) -> None:
        """Discard all measurement windows recorded so far.

        Call this method when the unit of the measured speed changes, because speeds in different units
        cannot be compared.
        """
        self._windows = self._contradictions = 0
        self._changes += 1

    def add_window(self) -> None:
        """Count one more measurement window of the job.

        The guard compares this number with the number of windows that contradicted the expected values.
        """
        self._windows += 1

    def add_contradiction(self) -> None:
        """Count a measurement window in which the job ran faster or slower than expected.

        Call this method only if the untuned speed of the job has not changed.
        """
        self._contradictions += 1

    @property
    def is_irregular(self) -> bool:
        """Whether the job's progress is too irregular for tuning.

        The progress is too irregular if too many measurement windows deviated from the expected values. It
        is also too irregular if the unit of the measured speed has changed too often.
        """
        if self._changes > _MAX_UNIT_CHANGES:
            return True
        many = self._contradictions * _WINDOWS_PER_CONTRADICTION >= self._windows
        return many and self._contradictions >= _MIN_CONTRADICTIONS


class DevicePowerGuard:
    """Detector that finds out from the power of its devices that a job does other work than before.

    A job may pass through phases with different work. The power in each measurement window is compared
    with the power in the first window at the same operating point (settings). The power is needed because
    two phases can have the same speed at this point although their untuned speeds differ. The power of a
    device distinguishes the phases better than the power of the whole job.
    """

    def __init__(self) -> None:
        """Create a guard that has no measurement window to compare with.

        The next window is the first one; later windows are compared with it.
        """
        self.reset()

    def reset(self) -> None:
        """Forget the first measurement window, with which the power of later windows is compared."""
        self._first: tuple[float | None, float | None] | None = None

    def add(self, window: ProgressWindow) -> float:
        """Add a measurement window and return the largest relative change of a device's power.

        The change is the logarithm of the ratio to the first window.
        """
        watts = (window.gpu_watts, window.package_watts)
        if self._first is None:
            self._first = watts
        pairs = zip(watts, self._first, strict=True)
        return max((math.log(now / before) for now, before in pairs if now and before), key=abs, default=0.0)


class RunBudget:
    """Account of the time and energy that a tuned job has lost relative to its untuned state.

    It also computes the losses that are still permitted.
    """

    def __init__(self, objective: Objective, expected_duration_s: float | None = None) -> None:
        """Start to record the losses of a new job due to the search for an operating point.

        Args:
            objective: objective with its slowdown limit.
            expected_duration_s: expected time to the end of the job; None if unknown.
        """
        self._objective, self._expected_s = objective, expected_duration_s
        self._elapsed_s = 0.0
        self._untuned_s = 0.0
        self._excess_energy_s = 0.0

    def add(self, duration_s: float, log_time_ratio: float, log_power_ratio: float) -> None:
        """Add an interval of the run to the sums of lost time and energy.

        `log_time_ratio` and `log_power_ratio` are the logarithms of the time and power in the interval,
        relative to the untuned job.
        """
        untuned_s = duration_s * math.exp(-log_time_ratio)
        self._elapsed_s += duration_s
        self._untuned_s += untuned_s
        self._excess_energy_s += duration_s * math.exp(log_power_ratio) - untuned_s

    def forget_losses(self) -> None:
        """Discard the losses of time and energy that tuning is assumed to have caused in this run.

        They may be wrong because only some of the measurement windows contained pauses.
        """
        self._untuned_s, self._excess_energy_s = self._elapsed_s, 0.0

    @property
    def slowdown(self) -> float:
        """Slowdown of the job so far, relative to the untuned job: 0.1 means 10 % more time.

        The slowdown is 0 before the first measured interval.
        """
        return self._elapsed_s / self._untuned_s - 1.0 if self._untuned_s > 0 else 0.0

    def remaining_windows(self, window_s: float) -> float:
        """Return the expected number of measurement windows until the end of the job.

        If the expected duration of the job is unknown, or the job has clearly run for longer than its
        expected duration, the job is expected to continue for as long as it has already run, but for at least
        20 windows. Long training steps make windows long. If 20 windows are longer than ten minutes, the
        minimum is ten minutes instead.

        Args:
            window_s: length of a window in seconds.
        """
        if self._expected_s is not None and self._untuned_s <= _MAX_OVERRUN * self._expected_s:
            return max(self._expected_s - self._elapsed_s, 0.0) / window_s
        return max(self._elapsed_s / window_s, min(_MIN_REMAINING_WINDOWS, _MIN_REMAINING_S / window_s))

    def max_loss(self, window_s: float) -> float:
        """Return the maximum relative loss of the objective that the next measurement window may cause.

        The sum of all losses may be at most `_MAX_LOSS` of the whole job. Gains so far permit further
        losses.

        Args:
            window_s: length of the window in seconds.
        """
        lost_s = self._elapsed_s - self._untuned_s
        loss_s = self._excess_energy_s + (TIME_EXPONENTS[self._objective.name] - 1) * lost_s
        horizon_s = self._elapsed_s + self.remaining_windows(window_s) * window_s
        return (_MAX_LOSS * horizon_s - loss_s) / window_s

    def max_time_ratio(self, window_s: float) -> float:
        """Return how slow the next measurement window may be if the job keeps its slowdown limit.

        The result is a ratio: the time of the window divided by its untuned time. The result is infinity if
        the job has no slowdown limit.

        Args:
            window_s: untuned duration of the measurement window.
        """
        limit = self._objective.slowdown_limit
        if limit is None:
            return math.inf
        allowed_s = limit * (self._untuned_s + window_s) - (self._elapsed_s - self._untuned_s)
        return 1.0 + max(allowed_s, 0.0) / window_s
