"""Periodic task that adds new records to the sums for `senergy report`.

The sums contain energy, CPU time and GPU time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from slurm_energy.accounting.usage.usage_rollup import UsageRollup
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog

INTERVAL_S: Final = 5.0
_MAX_CATCH_UP_S: Final = 2.0


class UsageLoop:
    """Periodic task that keeps the usage sums in the database up to date.

    The task adds newly arrived data to the sums in pieces. It pauses between pieces so that other tasks can
    write to the database.

    Args:
        store: the database.
        failures: log of failures; a repeated failure is logged once.
    """

    def __init__(self, store: Store, failures: RepeatedFailureLog) -> None:
        self._store = store
        self._failures = failures
        self._rollup = UsageRollup()

    async def loop(self) -> None:
        """Add new data at every interval until cancelled; log failures."""
        while True:
            try:
                while await self._advance():
                    await asyncio.sleep(0)
                self._failures.clear("usage")
            except EnergyError as error:
                self._failures.report("usage", str(error))
            await asyncio.sleep(INTERVAL_S)

    async def catch_up(self) -> None:
        """Add newly arrived data to the usage sums, so that a report includes the data.

        The function gives up after two seconds.

        Raises:
            UnavailableError: the database did not accept the data.
        """
        end_s = time.monotonic() + _MAX_CATCH_UP_S
        while await self._advance() and time.monotonic() < end_s:
            await asyncio.sleep(0)

    async def _advance(self) -> bool:
        return await self._store.write(self._rollup.advance, time.time())
