"""Carbon intensity or price over time, for computing the emissions or the cost of energy.

At times for which the time series has no value, a fallback value is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.quantities import JOULES_PER_KWH

EnergyPart = tuple[float, float, float | None]
"""Energy used between two times: start, end (Unix seconds) and joules, which are None if unknown."""

_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class GridAmount:
    """Emissions or cost of an amount of energy.

    Attributes:
        amount: grams or currency units. None if the energy is unknown, or the factor (emissions or price per
            kWh) is unknown at any time.
        known_amount: grams or currency units of the energy whose factor is known.
        known_share: fraction of the energy whose factor is known.
        fallback_share: fraction of the energy whose factor is the fallback.
    """

    amount: float | None
    known_amount: float
    known_share: float
    fallback_share: float


@dataclass(frozen=True, slots=True)
class GridFactor:
    """Emissions or price per kWh over time: a series, and a fallback for times without a value.

    Attributes:
        series: the series; None means only the fallback.
        fallback: constant series for the times at which `series` is unknown, usually a yearly factor; None if
            the factor is unknown at those times.
    """

    series: GridSeries | None
    fallback: GridSeries | None = None

    def __post_init__(self) -> None:
        if self.fallback is not None and not self.fallback.is_constant:
            raise ValueError("the fallback must be constant")

    def at(self, time_s: float) -> float | None:
        """Return the carbon intensity or price at a time; None if it is unknown at this time."""
        value = self.series.at(time_s) if self.series else None
        return value if value is not None or self.fallback is None else self.fallback.at(time_s)

    def is_constant_between(self, start_s: float, end_s: float) -> bool:
        """Return whether the carbon intensity or price is constant from `start_s` to `end_s`."""
        return self.series is None or self.series.is_constant_between(start_s, end_s)

    def amount(self, parts: Iterable[EnergyPart]) -> GridAmount:
        """Return the emissions or the cost of an amount of energy.

        Power is assumed to be constant within each time span.

        Args:
            parts: energy by time span. For a span without duration, the carbon intensity or price at the
                time of the span is used.
        """
        total = known = primary = amount = 0.0
        complete = True
        for start_s, end_s, joules in parts:
            if joules is None:
                complete = False
                continue
            factor, primary_share, known_share = self._mean(start_s, end_s)
            amount += joules * factor
            total += joules
            known += joules * known_share
            primary += joules * primary_share
        if not total:
            return GridAmount(0.0 if complete else None, 0.0, 1.0, 0.0)
        complete = complete and math.isclose(known, total, rel_tol=1e-9)
        amount /= JOULES_PER_KWH
        fallback_share = max(0.0, known - primary) / total
        fallback_share = 0.0 if fallback_share < 1e-9 else fallback_share
        known_share = 1.0 if math.isclose(known, total, rel_tol=1e-9) else known / total
        return GridAmount(amount if complete else None, amount, known_share, fallback_share)

    def _mean(self, start_s: float, end_s: float) -> tuple[float, float, float]:
        """Return the mean carbon intensity or price over a time span.

        Times at which the value is unknown count as 0.

        Returns:
            Three values. The first is the mean. The second is the fraction of the span in which the series
            is known. The third is the fraction in which the series or the fallback is known.
        """
        length_s = end_s - start_s
        if length_s <= 0:
            return self._moment(start_s)
        weighted = primary_s = 0.0
        if self.series is not None:
            integral = self.series.integrate(start_s, end_s)
            weighted, primary_s = integral.value_seconds, integral.known_s
        known_s = primary_s
        if self.fallback is not None and primary_s < length_s:
            weighted += self.fallback.values[0] * (length_s - primary_s)
            known_s = length_s
        return weighted / length_s, primary_s / length_s, known_s / length_s

    def _moment(self, time_s: float) -> tuple[float, float, float]:
        value = self.series.at(time_s) if self.series else None
        if value is not None:
            return value, 1.0, 1.0
        value = self.fallback.at(time_s) if self.fallback else None
        return (0.0, 0.0, 0.0) if value is None else (value, 0.0, 1.0)

    @property
    def sources(self) -> tuple[SeriesSource, ...]:
        """Origins (provider and zone) of the values: first of the series, then of the fallback value."""
        return tuple(part.source for part in (self.series, self.fallback) if part is not None)

    def basis(self, amount: GridAmount) -> str:
        """Return one line that states on which data an amount of emissions or cost is based.

        The line names the source and the time resolution of the data. It also states the share of the amount
        that comes from the fallback value, and the share that is unknown.

        Args:
            amount: result of `amount` of this factor.
        """
        parts = []
        if self.series is not None and (amount.fallback_share < 1 or self.fallback is None):
            parts.append(f"{self.series.source.text}{_resolution_text(self.series)}")
        if self.fallback is not None and amount.fallback_share > 0:
            share = "" if not parts else f"{_percent(amount.fallback_share)} by "
            parts.append(f"{share}{self.fallback.source.text}")
        if amount.known_share < 1:
            parts.append(f"{_percent(1 - amount.known_share)} unknown")
        return ", ".join(parts)

    def thinned(self, max_samples: int) -> GridFactor:
        """Return a copy with at most about `max_samples` samples of the carbon intensity or price.

        Each new sample is the mean of several old samples.
        """
        return GridFactor(None if self.series is None else self.series.thinned(max_samples), self.fallback)

    def to_json(self) -> dict[str, Any]:
        """Return the carbon intensity or price over time, with its fallback, as a JSON object."""
        return {
            "series": None if self.series is None else _series_to_json(self.series),
            "fallback": None if self.fallback is None else _series_to_json(self.fallback),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GridFactor:
        """Build a factor (carbon intensity or price over time) from JSON that `to_json` made.

        Raises:
            ValueError, TypeError, KeyError: the object has another form.
        """
        series, fallback = value["series"], value.get("fallback")
        return cls(
            None if series is None else _series_from_json(series),
            None if fallback is None else _series_from_json(fallback),
        )


def _series_to_json(series: GridSeries) -> dict[str, Any]:
    head = {
        "provider": series.source.provider,
        "zone": series.source.zone,
        "detail": series.source.detail,
        "resolution_s": series.resolution_s,
    }
    if series.is_constant:
        return {**head, "constant": series.at(0.0)}
    return {**head, "samples": [list(sample) for sample in series.samples]}


def _series_from_json(value: dict[str, Any]) -> GridSeries:
    source = SeriesSource(str(value["provider"]), str(value["zone"]), str(value["detail"]))
    if "constant" in value:
        return GridSeries.constant(source, float(value["constant"]))
    samples = [(float(start), float(end), float(number)) for start, end, number in value["samples"]]
    resolution = value.get("resolution_s")
    return GridSeries(source, samples, None if resolution is None else float(resolution))


def _resolution_text(series: GridSeries) -> str:
    if series.resolution_s is None:
        return ""
    if series.resolution_s == _HOUR_S:
        return ", hourly"
    if series.resolution_s % _HOUR_S == 0:
        return f", every {series.resolution_s / _HOUR_S:g} h"
    return f", every {series.resolution_s / 60:g} min"


def _percent(share: float) -> str:
    """Return a fraction as text in percent.

    The text is 0 % or 100 % only if the fraction is exactly 0 or 1.
    """
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{share * 100:.3g} %"
