"""Exact time integral of a piecewise constant quantity."""

from __future__ import annotations


class Integrator:
    """Integrate a rate over time, such as watts to joules.

    A segment ends only when the value changes, so readings in between cause no rounding error.
    """

    __slots__ = ("_closed", "_since_s", "value")

    def __init__(self, now_s: float, value: float) -> None:
        self.value = value
        self._closed = 0.0
        self._since_s = now_s

    def integral_at(self, now_s: float) -> float:
        """Return the integral from the start to `now_s`, which must not precede the last change."""
        return self._closed + self.value * (now_s - self._since_s)

    def set_rate(self, now_s: float, value: float) -> bool:
        """Set the rate from `now_s` on; return whether it changed."""
        if value == self.value:
            return False
        self._closed = self.integral_at(now_s)
        self._since_s = now_s
        self.value = value
        return True
