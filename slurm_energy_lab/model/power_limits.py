"""Running average power limits: when an average meets its limit, in closed form.

Pure arithmetic on one limit; what the package then does is decided in `cpu`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MET_TOLERANCE_WATTS = 1e-3
"""An average this close to its limit counts as met; a clamped package stays within it."""


@dataclass(slots=True)
class RunningAverageLimit:
    """One limit and the exponentially weighted average that is compared with it.

    The average obeys d(average)/dt = (power - average) / window; with constant power from `since_s` on
    it is power + (average - power) exp(-(t - since) / window).

    Attributes:
        running: False: the limit is a ceiling on the momentary power instead (short term).
        crossing_s: when the average will meet the limit, None if it won't at the present power.
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
        """Return the running average at `now_s`."""
        if self.average_watts == self.power_watts or now_s <= self.since_s:
            return self.average_watts
        decay = math.exp(-(now_s - self.since_s) / self.window_s)
        return self.power_watts + (self.average_watts - self.power_watts) * decay

    def update_average(self, now_s: float) -> None:
        """Bring the stored average to `now_s`; at its crossing it is the limit exactly."""
        crossed = self.crossing_s is not None and self.crossing_s <= now_s
        self.average_watts = self.limit_watts if crossed else self.average_at(now_s)
        self.since_s = now_s
        self.crossing_s = None

    def in_force(self) -> bool:
        """Return whether power must not exceed the limit now (call `update_average` first)."""
        if not self.enabled:
            return False
        return not self.running or self.average_watts >= self.limit_watts - MET_TOLERANCE_WATTS

    def set_power(self, power_watts: float) -> None:
        """Let constant power begin at the settled time and foresee the crossing."""
        self.power_watts = power_watts
        self.crossing_s = None
        if not (self.enabled and self.running) or self.in_force() or power_watts <= self.limit_watts:
            return
        gap = (power_watts - self.average_watts) / (power_watts - self.limit_watts)
        self.crossing_s = self.since_s + self.window_s * math.log(gap)
