"""Periodic deletion of old data from the database.

The data are traces, observations, decisions, trials of adjustments, samples of budgets, and values of carbon
intensities and prices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from slurm_energy.accounting import adjustments, budgets, decisions
from slurm_energy.accounting.records import traces
from slurm_energy.accounting.schema import tables
from slurm_energy.accounting.schema.observation_tables import observations
from slurm_energy.config import Config
from slurm_energy.controller.grid.fetcher import GridFetcher
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog

INTERVAL_S: Final = 3600.0
_DAY_S: Final = 86400.0


async def drop_old_data(
    config: Callable[[], Config], store: Store, grid: GridFetcher, failures: RepeatedFailureLog
) -> None:
    """Delete old data from the database every hour until cancelled.

    The current configuration states the maximum age of each kind of data.

    Args:
        config: function that returns the current configuration.
        store: the database.
        grid: object that deletes old carbon intensities and prices.
        failures: log of failures; a repeated failure is logged once.
    """
    while True:
        before = time.time() - config().controller.trace_retention_days * _DAY_S
        try:
            for table in (tables.traces, observations):
                while await store.write(traces.drop_old_attachments, table, before) == traces.BATCH:
                    await asyncio.sleep(0)
            kept_s = config().controller.history_days * _DAY_S
            await store.write(decisions.drop_before, time.time() - kept_s)
            await store.write(adjustments.drop_before, time.time() - kept_s)
            await _drop_budget_history(config().budget.history_days * _DAY_S, store)
            await grid.drop_old()
            failures.clear("trace retention")
        except EnergyError as error:
            failures.report("trace retention", str(error))
        await asyncio.sleep(INTERVAL_S)


async def _drop_budget_history(kept_s: float, store: Store) -> None:
    """Reduce the stored history of power budgets.

    Old samples are merged into coarser samples. Samples older than `kept_s` seconds are deleted.
    """
    now = time.time()
    while await store.write(budgets.merge_old_samples, now - budgets.FINE_KEPT_S):
        await asyncio.sleep(0)
    await store.write(budgets.drop_before, now - kept_s)
