"""Exact time integral of a quantity that is constant between changes, for example power."""

from __future__ import annotations


class Integrator:
    """Integrates a rate over time, for example watts to joules.

    The sum is updated only when the rate changes, so readings in between cause no rounding error.
    """

    __slots__ = ("_closed", "_since_s", "value")

    def __init__(self, now_s: float, value: float) -> None:
        self.value = value
        self._closed = 0.0
        self._since_s = now_s

    def integral_at(self, now_s: float) -> float:
        """Return the integral from the start to time `now_s`.

        `now_s` must not precede the last change of the rate.
        """
        return self._closed + self.value * (now_s - self._since_s)

    def set_rate(self, now_s: float, value: float) -> bool:
        """Set the rate that is integrated, from time `now_s` on.

        Return whether the rate changed.
        """
        if value == self.value:
            return False
        self._closed = self.integral_at(now_s)
        self._since_s = now_s
        self.value = value
        return True
