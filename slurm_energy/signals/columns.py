"""Carbon intensity, price and other signals of a cluster or site, with forecasts and uncertainty.

Each signal is a column with one value per time slot. The module holds plain data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slurm_energy.errors import UsageError
from slurm_energy.signals.pue import DEFAULT_PUE

Floats = NDArray[np.float64]


class SignalName(StrEnum):
    """Name of a signal, which includes its unit. It is also the name of the column in `SignalColumns`."""

    PRICE = "price_per_kwh"
    CARBON = "carbon_g_per_kwh"
    RENEWABLE = "renewable_share"
    BUDGET = "budget_watts"
    OUTSIDE = "outside_celsius"


@dataclass(frozen=True, slots=True)
class SignalForecast:
    """Values of one signal in h consecutive time slots; both columns have shape (h,).

    Attributes:
        mean: expected value in each slot; NaN if unknown.
        deviation: standard deviation of the value around `mean`; 0 if the value is known.
        source: origin of the values, for display, such as `entsoe DE-LU (day-ahead)` or
            `history of 28 days`.
    """

    mean: Floats
    deviation: Floats
    source: str = ""

    def __post_init__(self) -> None:
        if self.mean.shape != self.deviation.shape or self.mean.ndim != 1:
            raise UsageError("signal forecast", "mean and deviation must be columns of the same length")

    @property
    def known(self) -> bool:
        """Return whether the forecast has a known value for at least one time slot."""
        return bool(np.any(np.isfinite(self.mean)))


def constant_forecast(value: float, slots: int, source: str = "constant") -> SignalForecast:
    """Return a forecast with one known value in all slots."""
    return SignalForecast(np.full(slots, float(value)), np.zeros(slots), source)


@dataclass(frozen=True, slots=True)
class SignalColumns:
    """Signals of one cluster (such as the price) by time slot, from the current time on.

    Slot i begins at start_s + i step_s.

    Attributes:
        start_s: start of slot 0 in seconds, at or before the current time. The clock is that of
            `Queue.now_s`: Unix time in senergyctld, and seconds from the start of the simulation in the
            simulator.
        step_s: length of a slot in seconds.
        price_per_kwh: price of electricity in units of the currency per kWh; may be negative.
        carbon_g_per_kwh: carbon intensity in grams of CO2 equivalents per kWh.
        renewable_share: fraction of renewable sources in the generation, 0 to 1.
        budget_watts: power budget of the cluster in watts; infinity means no limit.
        outside_celsius: outside temperature in degrees Celsius, from which the PUE follows.
        pue: energy of the site divided by the energy of its computers. If None, the PUE follows from the
            default model at `outside_celsius`.

    A signal without any source is None. All other signals have the same number of slots.
    """

    start_s: float
    step_s: float
    price_per_kwh: SignalForecast | None = None
    carbon_g_per_kwh: SignalForecast | None = None
    renewable_share: SignalForecast | None = None
    budget_watts: SignalForecast | None = None
    outside_celsius: SignalForecast | None = None
    pue: SignalForecast | None = None

    def __post_init__(self) -> None:
        if not (self.step_s > 0 and math.isfinite(self.step_s) and math.isfinite(self.start_s)):
            raise UsageError("signals", "start and step must be finite, and the step positive")
        columns = [*(self.forecast(name) for name in SignalName), self.pue]
        lengths = {len(column.mean) for column in columns if column is not None}
        if len(lengths) > 1:
            raise UsageError("signals", f"columns of {min(lengths)} and {max(lengths)} slots")

    @property
    def slots(self) -> int:
        """Return the number of time slots for which the signals have values; 0 if there is no signal."""
        return max((len(s.mean) for name in SignalName if (s := self.forecast(name)) is not None), default=0)

    @property
    def slot_start_s(self) -> Floats:
        """Start of each time slot in seconds, shape (h,)."""
        return self.start_s + self.step_s * np.arange(self.slots, dtype=np.float64)

    @property
    def end_s(self) -> float:
        """Return the end of the last slot in seconds."""
        return self.start_s + self.step_s * self.slots

    def forecast(self, name: SignalName | str) -> SignalForecast | None:
        """Return the column of a signal; None if the signal has no source."""
        column: SignalForecast | None = getattr(self, SignalName(name).value)
        return column

    def values(self, name: SignalName | str, time_s: ArrayLike) -> Floats:
        """Return the expected values of a signal at given times.

        A signal is, for example, the price. The value is NaN where the signal is unknown, or where the time
        is outside the time slots of this object.
        """
        return self._at(name, time_s, deviation=False)

    def deviations(self, name: SignalName | str, time_s: ArrayLike) -> Floats:
        """Return the standard deviations of a signal's forecast at given times.

        The result is NaN where the deviation is unknown, and for times outside the stored time slots.
        """
        return self._at(name, time_s, deviation=True)

    def at(self, name: SignalName | str, time_s: float) -> float | None:
        """Return the expected value of a signal at one time; None if it is unknown."""
        value = float(self.values(name, time_s))
        return None if math.isnan(value) else value

    def site_factor(self) -> Floats:
        """Return the PUE in each time slot, shape (h,).

        The PUE is the energy of the data centre divided by the energy of its computers. An unknown PUE is
        replaced by 1, so that it does not affect the comparison of slots.
        """
        if self.pue is not None:
            ratio = self.pue.mean
        elif self.outside_celsius is not None:
            ratio = DEFAULT_PUE.pue(self.outside_celsius.mean)
        else:
            return np.ones(self.slots)
        return np.where(np.isnan(ratio), 1.0, ratio)

    def _at(self, name: SignalName | str, time_s: ArrayLike, *, deviation: bool) -> Floats:
        times = np.asarray(time_s, np.float64)
        column = self.forecast(name)
        if column is None or not self.slots:
            return np.full(times.shape, np.nan)
        row = np.floor((times - self.start_s) / self.step_s)
        inside = (row >= 0) & (row < self.slots)
        rows = np.where(inside, row, 0).astype(np.int64)
        values = column.deviation if deviation else column.mean
        result: Floats = np.where(inside, values[rows], np.nan)
        return result
