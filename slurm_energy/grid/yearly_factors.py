"""Yearly mean carbon intensities of electricity by country, which slurm-energy contains.

Source: see `yearly_factors.csv`.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources
from typing import Final

from slurm_energy.grid.series import GridSeries, SeriesSource

PROVIDER: Final = "yearly"
PUBLISHER: Final = "Our World in Data"


@dataclass(frozen=True, slots=True)
class YearlyFactor:
    """Mean carbon intensity of a country's electricity in one year.

    Attributes:
        country: ISO 3166-1 code of two letters.
        name: English name of the country.
        grams_per_kwh: grams of CO2 equivalents per kWh.
        year: year that the mean covers.
    """

    country: str
    name: str
    grams_per_kwh: float
    year: int

    @property
    def series(self) -> GridSeries:
        """The carbon intensity as a constant series."""
        source = SeriesSource(PROVIDER, self.country, f"{self.year}, {PUBLISHER}")
        return GridSeries.constant(source, self.grams_per_kwh)


def yearly_factor(country: str) -> YearlyFactor | None:
    """Return the yearly carbon intensity of a country; None if the package has no value for the country.

    Args:
        country: ISO 3166-1 code of two or three letters, in upper or lower case.
    """
    return _factors().get(country.upper())


def known_countries() -> list[YearlyFactor]:
    """Return the yearly carbon intensities of all known countries by country code."""
    return sorted(set(_factors().values()), key=lambda factor: factor.country)


@functools.cache
def _factors() -> dict[str, YearlyFactor]:
    text = resources.files("slurm_energy.grid").joinpath("yearly_factors.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    factors = {}
    for row in rows:
        factor = YearlyFactor(row["alpha2"], row["country"], float(row["g_per_kwh"]), int(row["year"]))
        factors[row["alpha2"]] = factors[row["alpha3"]] = factor
    return factors
