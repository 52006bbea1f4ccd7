"""Requests about carbon intensity and price, which the CLI builds and senergyctld parses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.protocol.query_parameters import refuse_unknown
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.protocol.controller_client import ControllerClient

GRID_PATH: Final = "/v1/grid"
FETCH_PATH: Final = "/v1/grid/fetch"
MAX_WINDOW_S: Final = 50 * 366 * 86400.0
_MAX_UNIX_S: Final = 1e11
_ZONE: Final = re.compile(r"[A-Za-z0-9_.-]{0,64}")


@dataclass(frozen=True, slots=True)
class GridQuery:
    """Query of `GET /v1/grid`.

    Attributes:
        start: start of the time window in Unix seconds.
        end: end of the time window in Unix seconds.
        zone: one of the configured zones; empty for the site's zone.
    """

    start: float
    end: float
    zone: str = ""

    def parameters(self) -> dict[str, str]:
        """Return the query parameters."""
        zone = {"zone": self.zone} if self.zone else {}
        return {"start": repr(self.start), "end": repr(self.end), **zone}

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> GridQuery:
        """Parse the query parameters that `parameters` returned.

        Raises:
            UsageError: a parameter is unknown, malformed or missing.
        """
        refuse_unknown(query, cls.__slots__)
        start, end = _time(query, "start"), _time(query, "end")
        if not 0 <= end - start <= MAX_WINDOW_S:
            raise UsageError("end", "is before start, or too long after it")
        zone = query.get("zone", "")
        if not _ZONE.fullmatch(zone):
            raise UsageError(f"zone: '{shown(zone)}'", "is not a zone")
        return cls(start, end, zone)


def grid_factors(client: ControllerClient, start_s: float, end_s: float, zone: str = "") -> GridFactors:
    """Return the factors that convert energy used in a time window to emissions and cost.

    Args:
        client: client of the controller.
        start_s: time in Unix seconds from which the energy was used.
        end_s: time in Unix seconds until which the energy was used.
        zone: one of the configured zones; empty for the site's zone.

    Raises:
        UnavailableError: the controller does not answer, or the answer is not as documented.
    """
    return factors_of(client.get(GRID_PATH, GridQuery(start_s, end_s, zone).parameters()))


def factors_of(answer: dict[str, Any]) -> GridFactors:
    """Return the factors for emissions and cost in the response to `GET /v1/grid`.

    Raises:
        UnavailableError: the response is malformed.
    """
    try:
        return GridFactors.from_json(answer)
    except (KeyError, TypeError, ValueError):
        why = "the controller's response about the grid is malformed"
        raise UnavailableError("carbon and price", why, "is the controller of the same release?") from None


def _time(query: Mapping[str, str], name: str) -> float:
    text = query.get(name)
    try:
        value = float(text) if text is not None else float("nan")
    except ValueError:
        value = float("nan")
    if not 0 <= value <= _MAX_UNIX_S:
        raise UsageError(f"{name}: '{shown(text or '')}'", "is not a Unix time")
    return value
