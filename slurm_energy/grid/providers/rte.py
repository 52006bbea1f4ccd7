"""RTE eCO2mix: carbon intensity of generation in France, every 15 minutes, without a token.

Source: dataset eco2mix-national-tr of RTE, Explore API v2.1 of Opendatasoft. The field taux_co2 is in g/kWh
and describes direct emissions. A response has at most 100 rows.
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
    time_of,
    with_query,
)
from slurm_energy.grid.series import Sample, usual_step_s
from slurm_energy.grid.units import GridQuantity

_PATH: Final = "/api/explore/v2.1/catalog/datasets/eco2mix-national-tr/records"
_MAX_ROWS: Final = 100
_MAX_STEP_S: Final = 3600.0


class RteEco2mix(GridProvider):
    """Provider RTE eCO2mix: carbon intensity (direct emissions) of electricity in France."""

    quantity: ClassVar[GridQuantity] = GridQuantity.CARBON
    name: ClassVar[str] = "rte"
    detail: ClassVar[str] = "direct emissions"
    default_url: ClassVar[str] = "https://odre.opendatasoft.com"
    default_zone: ClassVar[str] = "FR"
    max_window_s: ClassVar[float] = 86400.0  # 96 rows

    def request(self, query: SeriesQuery, token: str, now_s: float) -> FetchRequest:
        """Return the HTTP request for a time range of the carbon intensity from RTE eCO2mix."""
        condition = (
            f"date_heure >= date'{second_text(query.start_s)}' and "
            f"date_heure < date'{second_text(query.end_s)}' and taux_co2 is not null"
        )
        parameters = {
            "select": "date_heure,taux_co2",
            "where": condition,
            "order_by": "date_heure",
            "limit": str(_MAX_ROWS),
            "timezone": "UTC",
        }
        return FetchRequest(with_query(query.base_url + _PATH, parameters))

    def samples(self, body: bytes, query: SeriesQuery) -> list[Sample]:
        """Return the samples of a response.

        The response states only when each sample begins. Every sample lasts as long as the median time
        between two samples of the response.
        """
        rows = json_rows(json_object(body, self.name), "results", self.name)
        points = sorted(
            (time_of(row, "date_heure", self.name), value)
            for row in rows
            if (value := number_of(row, "taux_co2", self.name)) is not None
        )
        step_s = min(_MAX_STEP_S, usual_step_s([time_s for time_s, _ in points]))
        return checked(((time_s, time_s + step_s, value) for time_s, value in points), self)
