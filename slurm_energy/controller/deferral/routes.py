"""HTTP route that states how much energy cost or emissions the deferral of jobs has saved.

numpy is imported at the first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from slurm_energy.accounting.history import deferred_runs
from slurm_energy.config import Config
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import UnavailableError, install_extra
from slurm_energy.protocol.deferral_requests import SAVINGS_PATH, SavingsRequest

_QUERY_TIMEOUT_S: Final = 20.0


class DeferralRoutes:
    """Handler of the HTTP route about savings by deferral of jobs.

    The caller's identity has already been checked.

    Args:
        config: function that returns the configuration.
        store: the database.
        source: reads price and carbon intensity.
    """

    def __init__(self, config: Callable[[], Config], store: Store, source: GridFactorSource) -> None:
        self._config, self._store, self._source = config, store, source

    @property
    def routes(self) -> RouteGroup:
        """The HTTP route that this object handles."""
        return RouteGroup(costly={SAVINGS_PATH: self.savings})

    async def savings(self, query: Mapping[str, str], rights: Rights) -> dict[str, Any]:
        """Return the response to `GET /v1/deferral/savings`: what the deferral of jobs has saved.

        Operators see all jobs. Other users see their own jobs.

        Raises:
            UsageError: a parameter is unknown or malformed.
            UnavailableError: numpy is missing, or the database refused.
        """
        try:
            from slurm_energy.controller.deferral.savings import WAIT_WINDOW_S, savings_rows
        except ImportError as error:
            why = f"{error.name or error} is not installed on the controller"
            raise UnavailableError("savings of deferral", why, install_extra("scheduling")) from None
        asked = SavingsRequest.from_query(query)
        config = self._config()
        names = (asked.accounts, asked.users, asked.partitions)
        window = (config.cluster.name, float(asked.start), float(asked.end))
        read = self._store.read_within
        runs = await read(
            _QUERY_TIMEOUT_S, deferred_runs.read_deferred_runs, *window, rights.visibility, names
        )
        rows: list[dict[str, Any]] = []
        if runs:
            first_s = min(run.eligible_s for run in runs) - WAIT_WINDOW_S
            last_s = max(run.eligible_s for run in runs) + WAIT_WINDOW_S
            waits = await read(
                _QUERY_TIMEOUT_S, deferred_runs.read_waits, config.cluster.name, first_s, last_s
            )
            longest_s = max(run.end_s for run in runs) - first_s
            series = await self._source.signals(first_s, last_s + longest_s)
            rows = await asyncio.to_thread(savings_rows, runs, waits, series)
        return {
            "cluster": config.cluster.name,
            "window": {"start": asked.start, "end": asked.end},
            "currency": config.price.currency,
            "rows": rows,
            **rights.described(),
        }
