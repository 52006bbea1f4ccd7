"""HTTP routes of senergyctld about carbon intensity and price.

They return the values in a time range, or fetch new values immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from slurm_energy.config import Config
from slurm_energy.controller.grid.fetcher import GridFetcher, configured_series
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.errors import ForbiddenError, NotFoundError
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.protocol.grid_requests import FETCH_PATH, GRID_PATH, GridQuery
from slurm_energy.protocol.query_parameters import refuse_unknown
from slurm_energy.quantities import shown


class GridRoutes:
    """Handlers of the routes about carbon intensity and price. The caller has been identified.

    Args:
        config: returns the configuration.
        source: reads the carbon intensities and prices in force.
        fetcher: fetches carbon intensities and prices from providers.
    """

    def __init__(self, config: Callable[[], Config], source: GridFactorSource, fetcher: GridFetcher) -> None:
        self._config, self._source, self._fetcher = config, source, fetcher

    @property
    def routes(self) -> RouteGroup:
        """The HTTP routes that this object handles."""
        return RouteGroup(costly={GRID_PATH: self.factors}, changes={FETCH_PATH: self.fetch})

    async def factors(self, query: Mapping[str, str], _: Rights) -> dict[str, Any]:
        """Return the response to `GET /v1/grid`.

        Everyone may request these values, because the response has no data about jobs.

        Raises:
            UsageError: a parameter is unknown or malformed.
            NotFoundError: the zone is not configured.
        """
        wanted = GridQuery.from_query(query)
        zones = self._zones()
        if wanted.zone and wanted.zone not in zones:
            todo = f"configured: {', '.join(zones)}" if zones else "set carbon.other_zones"
            raise NotFoundError(f"zone '{shown(wanted.zone)}'", "is not configured", todo)
        factors = await self._source.factors(wanted.start, wanted.end, wanted.zone)
        body = await asyncio.to_thread(_thinned_json, factors)
        return {**body, "zones": zones, "series": self._fetcher.status()}

    async def fetch(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Fetch all series now and return their state. Only operators may request this.

        Raises:
            ForbiddenError: the caller is no operator.
        """
        refuse_unknown({str(key): "" for key in body}, ())
        if not rights.everything:
            raise ForbiddenError("fetching", "only operators may", "ask an operator (controller.operators)")
        return {"series": await self._fetcher.fetch_all()}

    def _zones(self) -> list[str]:
        zones = [one.key.zone for one in configured_series(self._config()) if one.key.quantity == "carbon"]
        return list(dict.fromkeys(zones))


def _thinned_json(factors: GridFactors) -> dict[str, Any]:
    return factors.thinned().to_json()
