"""Receiver of energy periods that agents deliver.

A period is the energy of one node in a time range. A delivery is parsed, its sender is checked, and its
periods are stored. The response contains the results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from slurm_energy.accounting.records.joint_storage import StorageResult, store_together
from slurm_energy.accounting.records.periods import DeliveredPeriod, read_periods, store_periods
from slurm_energy.accounting.records.plausibility import PlausibilityCheck
from slurm_energy.accounting.records.record_store import Refusal
from slurm_energy.config import Config
from slurm_energy.controller.http.node_hosts import NodeHosts, Sender
from slurm_energy.controller.http.sender_check import ItemSource, refuse_foreign
from slurm_energy.controller.records.deliveries import SMALL_BODY_BYTES, delivery_response, read_object
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.records.write_batches import WriteBatches
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.node_period import PERIOD_SCHEMA_VERSION

PERIODS_PATH: Final = "/v1/periods"
_READERS: Final = 2
"""Maximum number of deliveries that are parsed at the same time."""


class PeriodReceiver:
    """Receiver of deliveries from agents, which stores the delivered periods.

    Args:
        config: returns the current configuration.
        store: the database.
        failures: log of refusals; a repeated refusal is logged once.
        hosts: addresses of nodes; None means that any sender may deliver periods of any node.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        failures: RepeatedFailureLog,
        hosts: NodeHosts | None = None,
    ) -> None:
        self._config, self._store, self._failures, self._hosts = config, store, failures, hosts
        self._reading = asyncio.Semaphore(_READERS)
        self._writes = WriteBatches(self._write)

    async def _write(self, deliveries: Sequence[Sequence[DeliveredPeriod]]) -> list[StorageResult]:
        return await self._store.write(store_together, deliveries, time.time(), store_periods)

    async def receive(self, body: bytes, sender: Sender) -> dict[str, Any]:
        """Store the periods of a delivery and return the response, which has a result for each period.

        Raises:
            UsageError: the body is not a delivery.
            UnavailableError: the database refused; nothing is stored.
        """
        controller = self._config().controller
        check = PlausibilityCheck.with_site_values(controller.max_watts)
        if len(body) > SMALL_BODY_BYTES:
            async with self._reading:
                items, refusals = await asyncio.to_thread(_read, body, check)
        else:
            items, refusals = _read(body, check)
        sources = [ItemSource(item.index, item.period.period_id, item.period.node) for item in items]
        foreign = await refuse_foreign(self._hosts, controller.record_hosts, sources, sender, "energy period")
        refused = {refusal.index for refusal in foreign}
        own = [item for item in items if item.index not in refused]
        accepted, rejected = await self._writes.add(own)
        self._failures.clear("request")
        refusals = [*refusals, *foreign, *rejected]
        if refusals:
            message = f"{refusals[0].outcome}: {refusals[0].error}"
            self._failures.report(f"periods from {sender.peer}", message)
        return delivery_response(accepted, refusals, PERIOD_SCHEMA_VERSION)


def _read(body: bytes, check: PlausibilityCheck) -> tuple[list[DeliveredPeriod], list[Refusal]]:
    return read_periods(read_object(body).get("items"), check)
