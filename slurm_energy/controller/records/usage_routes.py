"""Route of `senergy report`: energy, time, emissions and cost by group and interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.accounting.records.node_coverage import missing_node_seconds, off_energy
from slurm_energy.accounting.usage.usage_queries import (
    UsageQuery,
    WindowUsage,
    read_usage,
    visible_groups,
)
from slurm_energy.accounting.usage.usage_rollup import uncounted_periods
from slurm_energy.config import Config
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.records.usage_document import GridRates, usage_rows
from slurm_energy.controller.records.usage_loop import UsageLoop
from slurm_energy.errors import UnavailableError
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.protocol.usage_requests import USAGE_PATH, UsageRequest
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.fair_share import ShareCache, read_shares

_QUERY_TIMEOUT_S: Final = 20.0
_SHARES_AGE_S: Final = 600.0
_SECONDS_PER_HOUR: Final = 3600.0
_MICROJOULES: Final = 1e-6


class UsageRoutes:
    """Handler of the route of `senergy report`. The caller has been identified.

    Args:
        config: returns the configuration.
        store: the database.
        usage: adds newly arrived data to the sums before a report.
        factors: emissions and cost per kWh.
        run: runs sacctmgr, for the hierarchy of accounts.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        usage: UsageLoop,
        factors: GridFactorSource,
        run: Runner,
    ) -> None:
        self._config, self._store, self._usage, self._factors = config, store, usage, factors
        self._shares = ShareCache(lambda: read_shares(run, config().cluster.name), _SHARES_AGE_S)
        self._reading_shares = asyncio.Lock()

    @property
    def routes(self) -> RouteGroup:
        """The HTTP route that this object handles."""
        return RouteGroup(costly={USAGE_PATH: self.report})

    async def report(self, query: Mapping[str, str], rights: Rights) -> dict[str, Any]:
        """Return the response to `GET /v1/usage`.

        Users see their own jobs. Operators see all jobs. Operators also see idle and unattributed energy. If
        `controller.public_meter` is set, all users see idle and unattributed energy.

        Raises:
            UsageError: a parameter is unknown or malformed, or the response would be too long.
            UnavailableError: the database could not be read or written.
        """
        request = UsageRequest.from_query(query)
        config = self._config()
        await self._usage.catch_up()
        start, end = request.edges[0], request.edges[-1]
        factors = await self._factors.factors(start, end)
        clusters = () if request.all_clusters else request.clusters or (config.cluster.name,)
        rates = GridRates(factors)
        asked = UsageQuery(
            request.edges, clusters, request.nodes, rates if rates.vary else None, request.count_jobs
        )
        usage = await self._store.read_within(_QUERY_TIMEOUT_S, read_usage, asked)
        uncounted = await self._store.read(uncounted_periods)
        parents = await self._parents(config.cluster.name) if "account" in request.by else {}
        answer = _Answer(
            request, rights, factors, rates, with_meter=rights.everything or config.controller.public_meter
        )
        return await asyncio.to_thread(answer.content, usage, uncounted, parents)

    async def _parents(self, cluster: str) -> dict[str, dict[str, str]]:
        """Return the parent account of each account of a cluster.

        The result is empty if there is no slurmdbd.
        """
        try:
            async with self._reading_shares:
                tree = await asyncio.to_thread(self._shares.current)
        except UnavailableError:
            return {}
        accounts = {name: tree.parents.get(name, "") for name in tree.accounts}
        return {cluster: accounts} if accounts else {}


@dataclass(frozen=True, slots=True)
class _Answer:
    """The response to a request, made from the sums in the database.

    For many nodes and intervals, the methods take seconds. Call them in a thread.

    Attributes:
        request: the request.
        rights: rights of the user.
        factors: emissions and cost per kWh.
        rates: the same, per microjoule.
        with_meter: whether the user may see idle and unattributed energy.
    """

    request: UsageRequest
    rights: Rights
    factors: GridFactors
    rates: GridRates
    with_meter: bool

    def content(
        self, usage: WindowUsage, uncounted: int, parents: dict[str, dict[str, str]]
    ) -> dict[str, Any]:
        """Return the response.

        Args:
            usage: sums of the window.
            uncounted: number of periods that the sums do not contain yet.
            parents: parent account of each account, by cluster.

        Raises:
            UsageError: the response would be too long.
        """
        start, end = self.request.edges[0], self.request.edges[-1]
        rows = self._rows(usage)
        missing = _missing(usage) if self.with_meter else None
        off = _off(usage) if self.with_meter else None
        return {
            "window": {"start": start, "end": end},
            "intervals": [[interval.start, interval.end] for interval in usage.intervals],
            "by": list(self.request.by),
            "rows": rows,
            "parents": parents,
            "meter_visible": self.with_meter,
            "missing_node_seconds": missing,
            "off": off,
            "has_carbon": self.factors.carbon is not None,
            "currency": self.factors.currency if self.factors.price is not None else "",
            "basis": _basis(self.factors, start, end, rows),
            "notes": _notes(usage, uncounted, missing or [], off or []),
            **self.rights.described(),
        }

    def _rows(self, usage: WindowUsage) -> list[dict[str, Any]]:
        rights, request = self.rights, self.request
        groups = visible_groups(usage.groups, rights.visibility, rights.name, with_meter=self.with_meter)
        rows = usage_rows(usage, groups, request.by, self.rates)
        if request.nodes:
            rows = [row | {"cpu_seconds": None, "gpu_seconds": None, "jobs": None} for row in rows]
        return rows


def _missing(usage: WindowUsage) -> list[dict[str, Any]]:
    return [
        {"cluster": cluster, "interval": index, "node_seconds": seconds}
        for index, interval in enumerate(usage.intervals)
        for cluster, seconds in sorted(missing_node_seconds(usage, interval).items())
        if seconds
    ]


def _off(usage: WindowUsage) -> list[dict[str, Any]]:
    return [
        {"cluster": cluster, "interval": index, "node_seconds": seconds, "energy_microjoules": energy_uj}
        for index, interval in enumerate(usage.intervals)
        for cluster, (seconds, energy_uj) in sorted(off_energy(usage, interval).items())
    ]


def _basis(factors: GridFactors, start: int, end: int, rows: list[dict[str, Any]]) -> str:
    joules = sum(row["energy_microjoules"] or 0 for row in rows) * _MICROJOULES
    return factors.footprint([(float(start), float(end), joules)]).basis


def _notes(
    usage: WindowUsage, uncounted: int, missing: list[dict[str, Any]], off: list[dict[str, Any]]
) -> list[str]:
    notes = []
    if any(interval.prorated for interval in usage.intervals):
        notes.append(
            "an edge of the window or of an interval is inside a measured period; its energy was divided in "
            "proportion to time"
        )
    if missing:
        hours = sum(entry["node_seconds"] for entry in missing) / _SECONDS_PER_HOUR
        notes.append(
            f"nodes delivered no energy for {hours:.2f} node-hours of the window: not measured, not 0"
        )
    if off:
        notes.append(_off_note(off))
    if uncounted:
        notes.append(f"{uncounted} periods of nodes have just arrived and are not counted yet")
    return notes


def _off_note(off: list[dict[str, Any]]) -> str:
    hours = sum(entry["node_seconds"] for entry in off) / _SECONDS_PER_HOUR
    energies = [entry["energy_microjoules"] for entry in off]
    known = [energy_uj for energy_uj in energies if energy_uj is not None]
    kwh = sum(known) * _MICROJOULES / 3.6e6
    text = f"their energy of {kwh:.3g} kWh is not in the sums" if len(known) == len(energies) else ""
    return f"nodes were powered down for {hours:.2f} node-hours of the window: {text or 'energy unknown'}"
