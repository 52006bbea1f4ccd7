"""Refusal of queries that name an account or partition which is most likely misspelt.

A name is refused if neither Slurm nor an energy record knows the name. Slurm is queried only for partitions,
and for accounts without records, and at most once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from slurm_energy.accounting.records import record_queries
from slurm_energy.config import Config
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import NotFoundError, UnavailableError
from slurm_energy.quantities import shown
from slurm_energy.slurm import site_names
from slurm_energy.slurm.command import CommandRunner, Runner
from slurm_energy.spelling import suggestion

_MAX_AGE_S: Final = 60.0
_TIMEOUT_S: Final = 5.0
_QUERY_TIMEOUT_S: Final = 20.0
"""Time limit of the search for names in the records, because one query may name thousands of partitions.

The queries of operators have no limit.
"""

log = logging.getLogger(__name__)


class NameCheck:
    """Check of the names of Slurm accounts and partitions in queries.

    Args:
        config: returns the current configuration.
        store: the database with the energy records.
        run: runs a Slurm command.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        run: Runner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._store, self._clock = config, store, clock
        self._run: Runner = run or CommandRunner(_TIMEOUT_S)
        self._lock = asyncio.Lock()
        self._cached: dict[str, tuple[float, frozenset[str] | None]] = {}

    async def refuse_unknown(
        self, accounts: Collection[str], partitions: Collection[str], *, by_operator: bool
    ) -> None:
        """Raise an error if a query names an unknown account or partition.

        While Slurm does not answer, no name is refused, because Slurm may know the name.

        Args:
            accounts: accounts in the query.
            partitions: partitions in the query.
            by_operator: whether an operator has sent the query, so that the search has no time limit.

        Raises:
            NotFoundError: an account or partition is unknown. The error names the first unknown name.
            UnavailableError: the database refused, or the search takes too long.
        """
        if accounts:
            recorded = await self._recorded_names("account", accounts, by_operator)
            missing = [name for name in accounts if name not in recorded]
            await self._refuse(missing, "account", recorded, by_operator)
        if partitions:
            await self._refuse(partitions, "partition", frozenset(), by_operator)

    async def _refuse(
        self, names: Collection[str], kind: str, recorded: frozenset[str], by_operator: bool
    ) -> None:
        """Check that each name is known, and raise an error for the first unknown name.

        A name is known if Slurm has it or an energy record contains it.

        Args:
            names: names in the query.
            kind: `account` or `partition`.
            recorded: names that occur in energy records.
            by_operator: whether the search has no time limit.
        """
        slurm_names = await self._slurm_names(kind) if names else None
        if slurm_names is None:
            return
        missing = [name for name in names if name not in slurm_names]
        if missing and not recorded:
            recorded = await self._recorded_names(kind, missing, by_operator)
        for name in missing:
            if name not in recorded:
                raise await asyncio.to_thread(_unknown_name, kind, name, slurm_names | recorded)

    async def _recorded_names(self, kind: str, names: Collection[str], by_operator: bool) -> frozenset[str]:
        if by_operator:
            return await self._store.read(record_queries.recorded_names, kind, names)
        return await self._store.read_within(_QUERY_TIMEOUT_S, record_queries.recorded_names, kind, names)

    async def _slurm_names(self, kind: str) -> frozenset[str] | None:
        """Return all account names or all partition names that Slurm knows, at most a minute old.

        The result is None if Slurm did not answer.

        Args:
            kind: which of the two kinds of names to return.
        """
        async with self._lock:
            read_s, names = self._cached.get(kind, (-_MAX_AGE_S, None))
            if self._clock() - read_s >= _MAX_AGE_S:
                names = await asyncio.to_thread(self._query_slurm, kind)
                self._cached[kind] = self._clock(), names
            return names

    def _query_slurm(self, kind: str) -> frozenset[str] | None:
        try:
            if kind == "account":
                return site_names.read_accounts(self._run, self._config().cluster.name)
            return site_names.read_partitions(self._run)
        except UnavailableError as error:
            log.debug("names of %ss are unknown: %s", kind, error)
            return None


def _unknown_name(kind: str, name: str, known: Collection[str]) -> NotFoundError:
    why = "neither Slurm nor an energy record knows it"
    return NotFoundError(
        f"{kind} {shown(name)}", why, suggestion(name, sorted(known)) or "is it spelt right?"
    )
