"""ENTSO-E Transparency Platform: day-ahead prices, and carbon intensity from generation by type.

Requests need a token. ENTSO-E publishes no carbon intensity. This module computes the carbon intensity from
the actual generation by type (document A75) and the life-cycle emissions of each type. Exchange with other
zones is not included. Source of the emissions: IPCC, Fifth Assessment Report, Working Group III (2014), Annex
III, Table A.III.2, median values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import ClassVar, Final

from slurm_energy.grid.providers.base import (
    MAX_SAMPLES,
    FetchRequest,
    GridProvider,
    ProviderResponseError,
    SeriesQuery,
    checked,
    with_query,
)
from slurm_energy.grid.providers.market_document import XmlElement, blocks, read_document, resolution_s
from slurm_energy.grid.series import Sample
from slurm_energy.grid.units import GridQuantity, price_unit_factor
from slurm_energy.quantities import shown

_URL: Final = "https://web-api.tp.entsoe.eu/api"
_DAY_S: Final = 86400.0
_FIRST_AUCTION: Final = ("", "1")
_AUCTION: Final = "classificationSequence_AttributeInstanceComponent.position"

GRAMS_PER_KWH: Final = {
    "B01": 230.0,  # biomass, dedicated
    "B02": 820.0,  # lignite: coal, pulverised
    "B04": 490.0,  # gas, combined cycle
    "B05": 820.0,  # hard coal: coal, pulverised
    "B09": 38.0,  # geothermal
    "B11": 24.0,  # hydropower, run of river
    "B12": 24.0,  # hydropower, reservoir
    "B13": 17.0,  # ocean
    "B14": 12.0,  # nuclear
    "B16": 48.0,  # solar, photovoltaic, utility
    "B18": 12.0,  # wind, offshore
    "B19": 11.0,  # wind, onshore
}
"""Life-cycle emissions by type of generation (psrType)."""

STORAGE: Final = "B10"
"""Pumped storage, which is not a source of energy and is left out."""

MAX_UNKNOWN_SHARE: Final = 0.1
"""Maximum share of generation by types without an emission factor. They get the mean of other types."""


class EntsoePrice(GridProvider):
    """Provider ENTSO-E, which supplies day-ahead electricity prices of a bidding zone."""

    quantity: ClassVar[GridQuantity] = GridQuantity.PRICE
    name: ClassVar[str] = "entsoe"
    detail: ClassVar[str] = "day-ahead"
    default_url: ClassVar[str] = _URL
    max_window_s: ClassVar[float] = 30 * 86400.0
    ahead_s: ClassVar[float] = 36 * 3600.0

    def request(self, query: SeriesQuery, token: str, now_s: float) -> FetchRequest:
        """Return the HTTP request for the day-ahead prices of a time range from ENTSO-E."""
        zones = {"in_Domain": query.zone, "out_Domain": query.zone}
        return _request(query, token, {"documentType": "A44", **zones})

    def samples(self, body: bytes, query: SeriesQuery) -> list[Sample]:
        """Return the day-ahead prices in a response of the ENTSO-E server, as prices per kWh.

        If the response contains several auctions, only the first auction is used. Several products may state
        a price for the same time. Then the price of the product with the shortest intervals is used.
        """
        document = read_document(body)
        if document is None:
            return []
        _require(document, "Publication_MarketDocument")
        series = [one for one in document.all("TimeSeries") if one.text_of(_AUCTION) in _FIRST_AUCTION]
        step_s = min((_step_s(one) for one in series), default=_DAY_S)
        samples: dict[float, Sample] = {}
        for one in sorted(series, key=_step_s, reverse=True):
            factor = self._unit(one, query.currency)
            for start_s, value in _steps(one, "price.amount", step_s):
                samples[start_s] = (start_s, start_s + step_s, value * factor)
        return checked(samples.values(), self)

    def _unit(self, series: XmlElement, currency: str) -> float:
        unit = f"{series.text_of('currency_Unit.name')}/{series.text_of('price_Measure_Unit.name')}"
        try:
            return price_unit_factor(unit.replace("MWH", "MWh"), currency)
        except ValueError:
            why = f"prices are in {shown(unit)}, not in {currency}/MWh"
            raise ProviderResponseError(self.name, why, "set price.currency") from None


class EntsoeCarbon(GridProvider):
    """Carbon intensity of the electricity that is generated in a zone, from ENTSO-E.

    It is computed from the generation of each type of power plant.
    """

    quantity: ClassVar[GridQuantity] = GridQuantity.CARBON
    name: ClassVar[str] = "entsoe"
    detail: ClassVar[str] = "generation mix, IPCC 2014"
    default_url: ClassVar[str] = _URL
    max_window_s: ClassVar[float] = 2 * 86400.0

    def request(self, query: SeriesQuery, token: str, now_s: float) -> FetchRequest:
        """Return the HTTP request to ENTSO-E for the generation mix of a zone in a time range.

        The carbon intensity is computed from the mix.
        """
        return _request(query, token, {"documentType": "A75", "processType": "A16", "in_Domain": query.zone})

    def samples(self, body: bytes, query: SeriesQuery) -> list[Sample]:
        """Return the carbon intensity in an ENTSO-E response as samples.

        Each value is the mean of the emissions of all kinds of power plants, weighted by their generation.
        """
        document = read_document(body)
        if document is None:
            return []
        _require(document, "GL_MarketDocument")
        # A series with outBiddingZone_Domain is consumption, for example of pumped storage.
        series = [
            one
            for one in document.all("TimeSeries")
            if not one.text_of("outBiddingZone_Domain.mRID") and _kind(one) != STORAGE
        ]
        step_s = min((_step_s(one) for one in series), default=0.0)
        megawatts: dict[float, dict[str, float]] = {}
        for one in series:
            for start_s, value in _steps(one, "quantity", step_s):
                by_kind = megawatts.setdefault(start_s, {})
                by_kind[_kind(one)] = by_kind.get(_kind(one), 0.0) + max(0.0, value)
        usual = _usual_mix(megawatts.values())
        return checked(
            (
                (start_s, start_s + step_s, mean)
                for start_s, by_kind in megawatts.items()
                if (mean := _mix_grams(by_kind, usual)) is not None
            ),
            self,
        )


def _request(query: SeriesQuery, token: str, parameters: dict[str, str]) -> FetchRequest:
    span = {"periodStart": _compact(query.start_s), "periodEnd": _compact(query.end_s)}
    return FetchRequest(with_query(query.base_url, {"securityToken": token, **parameters, **span}))


def _compact(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y%m%d%H%M")


def _require(document: XmlElement, name: str) -> None:
    if document.name != name:
        raise ProviderResponseError("entsoe", f"the response is a {shown(document.name)}, not a {name}")


def _kind(series: XmlElement) -> str:
    return series.text_of("MktPSRType", "psrType")


def _step_s(series: XmlElement) -> float:
    """Return the time step of a series in seconds.

    A series that states no length of its steps has a step of one day.
    """
    return min((resolution_s(period) for period in series.all("Period")), default=_DAY_S)


def _steps(series: XmlElement, value_name: str, step_s: float) -> Iterator[tuple[float, float]]:
    """Yield the start and the value of each step of a series in the response.

    A block of the series with a constant value is divided into steps of `step_s` seconds. Then the series of
    all types of generation have the same times.

    Raises:
        ProviderResponseError: there are too many steps.
    """
    count = 0
    for block in blocks(series, value_name):
        steps = max(1, round((block.end_s - block.start_s) / step_s))
        count += steps
        if count > MAX_SAMPLES:
            raise ProviderResponseError("entsoe", f"the response has more than {MAX_SAMPLES} values")
        yield from ((block.start_s + step * step_s, block.value) for step in range(steps))


def _usual_mix(mixes: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Return the amount of electricity that each type of generation contributes over all times.

    The result is the sum of the given values by type.
    """
    total: dict[str, float] = {}
    for mix in mixes:
        for kind, value in mix.items():
            total[kind] = total.get(kind, 0.0) + value
    return total


def _mix_grams(mix: Mapping[str, float], usual: Mapping[str, float]) -> float | None:
    """Return the mean emissions in g/kWh of electricity that several types of plants generate.

    Return None if too much of the generation is missing, or is of types without an emission factor.

    Args:
        mix: generation by type at one time. Types that report late are missing.
        usual: generation by type over all times.
    """
    missing = sum(value for kind, value in usual.items() if kind not in mix)
    if missing > MAX_UNKNOWN_SHARE * sum(usual.values()):
        return None
    total = sum(mix.values())
    known = {kind: value for kind, value in mix.items() if kind in GRAMS_PER_KWH}
    if total <= 0 or sum(known.values()) < (1 - MAX_UNKNOWN_SHARE) * total:
        return None
    return sum(GRAMS_PER_KWH[kind] * value for kind, value in known.items()) / sum(known.values())
