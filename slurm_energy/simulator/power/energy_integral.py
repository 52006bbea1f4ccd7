"""Exact energy of the cluster. Power is constant between events, so its integral is a sum of rectangles."""

from __future__ import annotations

import math

import numpy as np

from slurm_energy.scheduling.queue import Floats


class EnergyIntegral:
    """The cluster's power as a step function of time, and the integral of this function.

    Attributes:
        watts: current power of the cluster.
        peak_watts: highest power that lasted longer than zero seconds.
    """

    def __init__(self, watts: float) -> None:
        self.watts = watts
        self.peak_watts = 0.0
        self._since_s = 0.0
        self._times = [0.0]
        self._powers = [watts]
        self._joules: list[float] = []

    def change(self, now_s: float, watts: float) -> None:
        """Record that the cluster draws `watts` from the time `now_s` on."""
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
        """Return the energy in joules from the start of the simulation until `now_s`."""
        return math.fsum([*self._joules, self.watts * (now_s - self._since_s)])

    def series(self, end_s: float) -> tuple[Floats, Floats]:
        """Return the times in seconds at which the power changed, and the watts after each change.

        The last time is `end_s`. Its value repeats the power just before `end_s`.
        """
        self._settle(end_s)
        return np.array([*self._times, end_s]), np.array([*self._powers, self._powers[-1]])

    def _settle(self, now_s: float) -> None:
        if now_s > self._since_s:
            self.peak_watts = max(self.peak_watts, self.watts)
            self._joules.append(self.watts * (now_s - self._since_s))
            self._since_s = now_s
