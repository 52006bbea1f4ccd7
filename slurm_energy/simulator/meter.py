"""Exact energies: power is constant between events, so that integrals are sums of rectangles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slurm_energy.scheduling.queue import Floats


class PowerMeter:
    """The cluster's power as a step function of time.

    Attributes:
        watts: power now.
        peak_watts: highest power that lasted for some time.
    """

    def __init__(self, watts: float) -> None:
        self.watts = watts
        self.peak_watts = 0.0
        self._since_s = 0.0
        self._times = [0.0]
        self._powers = [watts]
        self._joules: list[float] = []

    def change(self, now_s: float, watts: float) -> None:
        """Let another power hold from now on."""
        if watts == self.watts:
            return
        self._settle(now_s)
        self.watts = watts
        if self._times[-1] == now_s:
            self._powers[-1] = watts
        else:
            self._times.append(now_s)
            self._powers.append(watts)

    def energy_joules(self, now_s: float) -> float:
        """Return the energy from the start until now."""
        return math.fsum([*self._joules, self.watts * (now_s - self._since_s)])

    def series(self, end_s: float) -> tuple[Floats, Floats]:
        """Return times and the power from each on; the last time is the end with the power before it."""
        self._settle(end_s)
        return np.array([*self._times, end_s]), np.array([*self._powers, self._powers[-1]])

    def _settle(self, now_s: float) -> None:
        if now_s > self._since_s:
            self.peak_watts = max(self.peak_watts, self.watts)
            self._joules.append(self.watts * (now_s - self._since_s))
            self._since_s = now_s


class Steps:
    """A series of values that each hold until the next: a budget, a price, a carbon intensity.

    Args:
        times_s: rising; before the first time the first value holds.
        values: as many.
    """

    def __init__(self, times_s: Sequence[float], values: Sequence[float]) -> None:
        if len(times_s) != len(values) or not len(times_s) or any(np.diff(times_s) <= 0):
            raise ValueError("times must rise, with one value each")
        self.times_s = np.asarray(times_s, np.float64)
        self.values = np.asarray(values, np.float64)

    @classmethod
    def constant(cls, value: float) -> Steps:
        """Return the series that never changes."""
        return cls([0.0], [value])

    def at(self, time_s: float) -> float:
        """Return the value that holds at a time."""
        index = int(np.searchsorted(self.times_s, time_s, "right"))
        return float(self.values[max(0, index - 1)])

    def after(self, time_s: float) -> float:
        """Return when the value changes next; infinity: never."""
        index = int(np.searchsorted(self.times_s, time_s, "right"))
        return float(self.times_s[index]) if index < len(self.times_s) else math.inf


def integral_of_product(times_s: Floats, watts: Floats, weights: Steps) -> float:
    """Return the integral of power times a series, e.g. of a price; exact.

    Args:
        times_s: as `PowerMeter.series` gives them, rising.
        watts: power from each time on.
        weights: the series.

    Returns:
        Joules times the unit of the weights.
    """
    inside = weights.times_s[(weights.times_s > times_s[0]) & (weights.times_s < times_s[-1])]
    edges = np.union1d(times_s, inside)
    left = edges[:-1]
    power = watts[np.searchsorted(times_s, left, "right") - 1]
    rows = np.maximum(0, np.searchsorted(weights.times_s, left, "right") - 1)
    return math.fsum(power * weights.values[rows] * np.diff(edges))
