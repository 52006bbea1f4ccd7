"""Exact integral of a piecewise constant quantity; nothing about what is measured."""

from __future__ import annotations


class Integrator:
    """Watts in, joules out (or any quantity and its integral over time).

    A segment is closed only when the value changes, so reading in between leaves no rounding behind.
    """

    __slots__ = ("_closed", "_since_s", "value")

    def __init__(self, now_s: float, value: float) -> None:
        self.value = value
        self._closed = 0.0
        self._since_s = now_s

    def integral_at(self, now_s: float) -> float:
        """Return the integral from the start to `now_s`, which is not before the last change."""
        return self._closed + self.value * (now_s - self._since_s)

    def set_rate(self, now_s: float, value: float) -> bool:
        """Let `value` hold from `now_s` on; return whether that is a change."""
        if value == self.value:
            return False
        self._closed = self.integral_at(now_s)
        self._since_s = now_s
        self.value = value
        return True
