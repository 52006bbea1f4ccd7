"""Provider of the carbon intensity of electricity consumption: Electricity Maps.

The values are hourly and exist for each zone. Requests need a token. The endpoint `history` has the
last 24 hours and belongs to the free plan. The endpoint `past-range` has all years and belongs to
commercial plans. Source: Electricity Maps API reference, v3.
"""

from __future__ import annotations

from typing import ClassVar, Final

from slurm_energy.grid.providers.base import (
    FetchRequest,
    GridProvider,
    SeriesQuery,
    checked,
    json_object,
    json_rows,
    number_of,
    second_text,
    step_ends,
    time_of,
    with_query,
)
from slurm_energy.grid.series import Sample
from slurm_energy.grid.units import GridQuantity

_HOUR_S: Final = 3600.0
_HISTORY_S: Final = 24 * _HOUR_S


class ElectricityMaps(GridProvider):
    """Provider Electricity Maps: carbon intensity with life-cycle emissions."""

    quantity: ClassVar[GridQuantity] = GridQuantity.CARBON
    name: ClassVar[str] = "electricitymaps"
    default_url: ClassVar[str] = "https://api.electricitymaps.com"
    max_window_s: ClassVar[float] = 10 * 86400.0

    def request(self, query: SeriesQuery, token: str, now_s: float) -> FetchRequest:
        """Return the request for a part of a series."""
        headers = {"auth-token": token}
        path = f"{query.base_url}/v3/carbon-intensity"
        if query.start_s >= now_s - _HISTORY_S - _HOUR_S:
            return FetchRequest(with_query(f"{path}/history", {"zone": query.zone}), headers)
        parameters = {
            "zone": query.zone,
            "start": second_text(query.start_s),
            "end": second_text(query.end_s),
        }
        return FetchRequest(with_query(f"{path}/past-range", parameters), headers)

    def samples(self, body: bytes, query: SeriesQuery) -> list[Sample]:
        """Return the values of carbon intensity in a response of the provider Electricity Maps."""
        answer = json_object(body, self.name)
        rows = json_rows(answer, "history" if "history" in answer else "data", self.name)
        points = [
            (time_of(row, "datetime", self.name), value)
            for row in rows
            if (value := number_of(row, "carbonIntensity", self.name)) is not None
        ]
        return checked(step_ends(points, _HOUR_S), self)
