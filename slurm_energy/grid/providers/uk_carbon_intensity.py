"""Reader of the Carbon Intensity API of Great Britain.

The API has half-hourly values for the whole country or by region, and needs no token. National values
are estimates made afterwards (`actual`). The forecast is used where these estimates are missing, and
for all regions. Source: carbon-intensity.github.io/api-definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from slurm_energy.grid.providers.base import (
    FetchRequest,
    GridProvider,
    ProviderResponseError,
    SeriesQuery,
    checked,
    json_object,
    json_rows,
    minute_text,
    number_of,
    time_of,
)
from slurm_energy.grid.series import Sample
from slurm_energy.grid.units import GridQuantity


class UkCarbonIntensity(GridProvider):
    """Provider that reads carbon intensities from the Carbon Intensity API of Great Britain.

    The zone is GB for the whole country, or the number of a region from 1 to 17.
    """

    quantity: ClassVar[GridQuantity] = GridQuantity.CARBON
    name: ClassVar[str] = "uk"
    default_url: ClassVar[str] = "https://api.carbonintensity.org.uk"
    default_zone: ClassVar[str] = "GB"
    max_window_s: ClassVar[float] = 13 * 86400.0  # the API accepts up to 14 days

    def request(self, query: SeriesQuery, token: str, now_s: float) -> FetchRequest:
        """Return the HTTP request for a part of the series of carbon intensity."""
        span = f"{minute_text(query.start_s)}/{minute_text(query.end_s)}"
        if query.zone.isdigit():
            return FetchRequest(f"{query.base_url}/regional/intensity/{span}/regionid/{query.zone}")
        return FetchRequest(f"{query.base_url}/intensity/{span}")

    def samples(self, body: bytes, query: SeriesQuery) -> list[Sample]:
        """Return the carbon intensities in a response of the provider, as samples over time."""
        answer = json_object(body, self.name)
        inner = answer.get("data")
        rows = json_rows(inner if isinstance(inner, dict) else answer, "data", self.name)
        samples = []
        for row in rows:
            value = self._value(row)
            if value is not None:
                start_s, end_s = time_of(row, "from", self.name), time_of(row, "to", self.name)
                samples.append((start_s, end_s, value))
        return checked(samples, self)

    def _value(self, row: Mapping[str, Any]) -> float | None:
        intensity = row.get("intensity")
        if not isinstance(intensity, dict):
            raise ProviderResponseError(self.name, "a row has no object 'intensity'")
        actual = number_of(intensity, "actual", self.name) if "actual" in intensity else None
        return actual if actual is not None else number_of(intensity, "forecast", self.name)
