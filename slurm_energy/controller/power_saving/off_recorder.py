"""Periods for which nodes are powered down, collected for the energy reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.accounting.records.off_periods import OffPeriod

PERIOD_S: Final = 900.0
"""Length after which the period of a node that stays off is stored: what a killed senergyctld loses."""
_MIN_SHARE: Final = 0.5
"""Minimum share of a period that readings of the power must cover for its energy to be known."""


@dataclass(slots=True)
class _OpenPeriod:
    """A period for which a node is off, and whose end is not known yet.

    Attributes:
        since_s: start of the period in Unix seconds.
        readings: time and power in watts of each reading.
    """

    since_s: float
    readings: list[tuple[float, float]] = field(default_factory=list)

    def energy_uj(self, until_s: float, length_s: float) -> int | None:
        """Return the energy of a powered-down node in `length_s` seconds.

        The energy is the mean power of the readings times `length_s`. It is None if the readings cover too
        little of the time from the start of the period to `until_s`.
        """
        if not self.readings or until_s - self.readings[0][0] < _MIN_SHARE * (until_s - self.since_s):
            return None
        mean_watts = sum(watts for _, watts in self.readings) / len(self.readings)
        return round(1e6 * mean_watts * length_s)


class OffRecorder:
    """Collector of the periods for which nodes are off."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenPeriod] = {}

    def update(self, off_watts: Mapping[str, float | None], now: float) -> list[OffPeriod]:
        """Record which nodes are off, and return the periods that have ended.

        Args:
            off_watts: power of each node that is off, by name; None means that the power is unknown.
            now: Unix seconds.
        """
        ended = []
        for name in list(self._open):
            one = self._open[name]
            is_stepped = now < one.since_s  # the clock was set back
            if name not in off_watts or now - one.since_s >= PERIOD_S or is_stepped:
                del self._open[name]
                start, end = math.ceil(one.since_s), math.floor(now)
                if end > start:
                    ended.append(OffPeriod(name, start, end, one.energy_uj(now, end - start)))
                    if name in off_watts:
                        self._open[name] = _OpenPeriod(float(end))
        for name, watts in off_watts.items():
            one = self._open.setdefault(name, _OpenPeriod(now))
            if watts is not None:
                one.readings.append((now, watts))
        return ended
