"""Arithmetic of one RAPL power limit, which applies to a running average of the power.

The module computes in closed form the time at which the average reaches the limit. At this time, the module
`package` lowers the frequency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_energy.errors import UsageError

MET_TOLERANCE_WATTS = 1e-3
"""Distance at which an average counts as having reached its limit. A throttled package stays within."""


@dataclass(slots=True)
class RunningAverageLimit:
    """One power limit, and the exponentially weighted average power that is compared with it.

    The average obeys d(average)/dt = (power - average) / window. With constant power from `since_s` on, the
    average at time t is power + (average - power) exp(-(t - since) / window).

    Attributes:
        limit_watts: the limit.
        window_s: time constant of the average in seconds.
        enabled: whether the limit is enabled.
        running: True for a limit on the running average; False for a limit on the instantaneous power (short
            term).
        average_watts: running average at `since_s`.
        since_s: time of the last update.
        power_watts: power since `since_s`.
        crossing_s: time at which the average will reach the limit; None if the average never reaches the
            limit at the current power.
    """

    limit_watts: float
    window_s: float
    enabled: bool
    running: bool
    average_watts: float
    since_s: float
    power_watts: float
    crossing_s: float | None = None

    def average_at(self, now_s: float) -> float:
        """Return the running average in watts at time `now_s`."""
        if self.average_watts == self.power_watts or now_s <= self.since_s:
            return self.average_watts
        decay = math.exp(-(now_s - self.since_s) / self.window_s)
        return self.power_watts + (self.average_watts - self.power_watts) * decay

    def update_average(self, now_s: float) -> None:
        """Advance the running average of the power to time `now_s`.

        If the average has reached the limit by this time, it is set to exactly the limit.
        """
        crossed = self.crossing_s is not None and self.crossing_s <= now_s
        self.average_watts = self.limit_watts if crossed else self.average_at(now_s)
        self.since_s = now_s
        self.crossing_s = None

    def change(self, now_s: float, limit_watts: float, window_s: float, enabled: bool) -> None:
        """Replace the limit and its window, and enable or disable it. The average up to now is kept.

        Raises:
            UsageError: the limit or the window is invalid.
        """
        if not (0 <= limit_watts < math.inf and 0 < window_s < math.inf):
            raise UsageError(f"limit of {limit_watts} W over {window_s} s is invalid")
        self.update_average(now_s)
        self.limit_watts, self.window_s, self.enabled = limit_watts, window_s, enabled

    def in_force(self) -> bool:
        """Return whether the limit currently bounds the power.

        Call `update_average` first.
        """
        if not self.enabled:
            return False
        return not self.running or self.average_watts >= self.limit_watts - MET_TOLERANCE_WATTS

    def set_power(self, power_watts: float) -> None:
        """Set a constant power and compute the time at which the average reaches the limit.

        The power applies from the time of the last `update_average` on.
        """
        self.power_watts = power_watts
        self.crossing_s = None
        if not (self.enabled and self.running) or self.in_force() or power_watts <= self.limit_watts:
            return
        gap = (power_watts - self.average_watts) / (power_watts - self.limit_watts)
        self.crossing_s = self.since_s + self.window_s * math.log(gap)
