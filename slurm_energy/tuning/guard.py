"""Guards of a search: detection of a change of speed, and the budget of time and energy of a run."""

from __future__ import annotations

import math

from slurm_energy.tuning.objective import TIME_EXPONENTS, Objective

_ALLOWANCE = 0.5
_THRESHOLD = 5.0
_MAX_STEP = 3.0
_SURPRISE = 4.0


class ChangeDetector:
    """Two-sided cumulative sum test on windows whose logarithm of the speed should be constant.

    Attributes:
        min_change: relative change below which windows are not surprising, whatever their errors.
    """

    def __init__(self, min_change: float = 0.02) -> None:
        """Start without evidence."""
        self.min_change = min_change
        self._rising = 0.0
        self._falling = 0.0

    def reset(self) -> None:
        """Drop the evidence."""
        self._rising = self._falling = 0.0

    def add(self, residual: float, error: float) -> bool:
        """Add a window and return whether the speed changed.

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
    """Return whether a single window contradicts its expectation.

    Args:
        residual: measured minus expected logarithm.
        error: standard error of the residual.
        min_change: relative change that is never surprising.
    """
    return abs(residual) > max(min_change, _SURPRISE * error)


class RunBudget:
    """Time and energy that a job lost against its untuned state, and what the slowdown limit allows."""

    def __init__(self, slowdown_limit: float | None) -> None:
        """Start a job.

        Args:
            slowdown_limit: maximum relative increase of the job's time; None for no limit.
        """
        self._limit = slowdown_limit
        self._untuned_s = 0.0
        self._lost_s = 0.0
        self._excess_energy_s = 0.0

    def add(self, duration_s: float, log_time_ratio: float, log_power_ratio: float) -> None:
        """Add an interval with its logarithms of the relative time and power."""
        untuned_s = duration_s * math.exp(-log_time_ratio)
        self._untuned_s += untuned_s
        self._lost_s += duration_s - untuned_s
        self._excess_energy_s += duration_s * math.exp(log_power_ratio) - untuned_s

    @property
    def slowdown(self) -> float:
        """Relative increase of the time so far; 0 before the first interval."""
        return self._lost_s / self._untuned_s if self._untuned_s > 0 else 0.0

    def loss_s(self, objective: Objective) -> float:
        """Return the increase of the objective so far, times the untuned time; negative for a gain."""
        return self._excess_energy_s + (TIME_EXPONENTS[objective.name] - 1) * self._lost_s

    def max_time_ratio(self, duration_s: float) -> float:
        """Return the maximum time ratio of the next interval that keeps the whole job within the limit.

        Args:
            duration_s: untuned duration of the interval.
        """
        if self._limit is None:
            return math.inf
        allowed_s = self._limit * (self._untuned_s + duration_s) - self._lost_s
        return 1.0 + max(allowed_s, 0.0) / duration_s
