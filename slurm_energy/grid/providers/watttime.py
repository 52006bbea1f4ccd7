"""WattTime: marginal emission rates every five minutes by region, with user name and password.

A login gives a token that is valid for 30 minutes. Values are marginal operating emission rates (MOER): the
emissions that a change of load causes, not the mean of all generation. Source: docs.watttime.org, v3.
"""

from __future__ import annotations

import base64
from typing import Any, ClassVar, Final

from slurm_energy.grid.providers.base import (
    FetchRequest,
    GridProvider,
    ProviderResponseError,
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
from slurm_energy.grid.units import GridQuantity, carbon_unit_factor
from slurm_energy.quantities import shown

_STEP_S: Final = 300.0
_MAX_TOKEN: Final = 8192


class WattTime(GridProvider):
    """Provider WattTime, which supplies the marginal carbon intensity (signal co2_moer)."""

    quantity: ClassVar[GridQuantity] = GridQuantity.CARBON
    name: ClassVar[str] = "watttime"
    detail: ClassVar[str] = "marginal"
    default_url: ClassVar[str] = "https://api.watttime.org"
    max_window_s: ClassVar[float] = 30 * 86400.0  # the API accepts up to 32 days
    has_login: ClassVar[bool] = True

    def login_request(self, base_url: str, user: str, password: str) -> FetchRequest:
        """Return the HTTP request that obtains a token from WattTime by login."""
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
        return FetchRequest(f"{base_url}/login", {"Authorization": f"Basic {credentials}"})

    def login_token(self, body: bytes) -> str:
        """Return the token in the response to `login_request`."""
        token = json_object(body, self.name).get("token")
        if not isinstance(token, str) or not 0 < len(token) <= _MAX_TOKEN or not _is_token(token):
            raise ProviderResponseError(self.name, "the response to the login has no token")
        return token

    def request(self, query: SeriesQuery, token: str, now_s: float) -> FetchRequest:
        """Return the HTTP request for a time range of the marginal carbon intensity from WattTime."""
        parameters = {
            "region": query.zone,
            "start": second_text(query.start_s),
            "end": second_text(query.end_s),
            "signal_type": "co2_moer",
        }
        url = with_query(f"{query.base_url}/v3/historical", parameters)
        return FetchRequest(url, {"Authorization": f"Bearer {token}"})

    def samples(self, body: bytes, query: SeriesQuery) -> list[Sample]:
        """Return the samples of a response in g/kWh. The response names their unit and time step."""
        answer = json_object(body, self.name)
        meta = answer.get("meta")
        meta = meta if isinstance(meta, dict) else {}
        factor = self._unit(meta)
        step_s = number_of(
            {"data_point_period_seconds": _STEP_S, **meta}, "data_point_period_seconds", self.name
        )
        points = [
            (time_of(row, "point_time", self.name), value * factor)
            for row in json_rows(answer, "data", self.name)
            if (value := number_of(row, "value", self.name)) is not None
        ]
        return checked(step_ends(points, step_s or _STEP_S), self)

    def _unit(self, meta: dict[str, Any]) -> float:
        unit = meta.get("units")
        try:
            return carbon_unit_factor(unit if isinstance(unit, str) else "")
        except ValueError:
            why = f"the unit of the values is unknown: {shown(repr(unit), 60)}"
            raise ProviderResponseError(self.name, why) from None


def _is_token(text: str) -> bool:
    """Return whether a text consists only of characters that an HTTP header may contain."""
    return text.isascii() and text.isprintable() and " " not in text
