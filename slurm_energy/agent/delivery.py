"""Brings spooled records to the controller, again and again until it has each. Never loses one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from slurm_energy.accounting.client import ControllerClient
from slurm_energy.agent.complaints import Complaints
from slurm_energy.agent.spool import Item, Spool
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import EnergyError, UsageError

log = logging.getLogger(__name__)

_SUBJECT = "delivery"
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
_TIMEOUT_S = 5.0
_TOTAL_TIMEOUT_S = 60.0
_MAX_RESPONSE_BYTES = 1 << 20
_BATCH_BYTES = 4_000_000
_BATCH_ITEMS = 200


class Delivery:
    """The background task between spool and controller.

    Args:
        spool: the records.
        cluster: where the controller is.
        node: returns this node's name.
        work: runs a function in the worker thread; the spool is only touched there.
    """

    def __init__(
        self,
        spool: Spool,
        cluster: ClusterConfig,
        node: Callable[[], str],
        work: Callable[..., Awaitable[Any]],
    ) -> None:
        self.cluster = cluster
        self._spool = spool
        self._node = node
        self._work = work
        self._wake = asyncio.Event()
        self._complaints = Complaints()

    def wake(self) -> None:
        """Say that there is something new; does not shorten the wait after a failure."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver for ever."""
        wait_s = _FIRST_WAIT_S
        while True:
            self._wake.clear()
            try:
                delivered = await self._deliver_some()
            except EnergyError as error:
                self._complaints.tell(_SUBJECT, f"records stay in the spool: {error}")
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            except OSError as error:
                self._complaints.tell(_SUBJECT, f"the spool cannot be read: {error}")
                await asyncio.sleep(_LONGEST_WAIT_S)
                continue
            wait_s = _FIRST_WAIT_S
            if not delivered:
                await self._wake.wait()

    async def _deliver_some(self) -> bool:
        """Deliver one batch. Returns False if there was nothing to deliver."""
        items: list[Item] = await self._work(self._spool.items, _BATCH_BYTES, _BATCH_ITEMS)
        if not items:
            return False
        client = self._client()
        try:
            answer = await self._post(client, items)
        except UsageError as error:
            if len(items) > 1:  # find out which one it is
                for item in items:
                    await self._deliver_alone(client, item)
            else:
                await self._reject(items[0], str(error))
            return True
        self._complaints.settle(_SUBJECT, "the controller answers again")
        await self._settle(items, answer)
        return True

    def _client(self) -> ControllerClient:
        cluster = self.cluster
        return ControllerClient(
            *(cluster.controller_url, cluster.munge_socket, _TIMEOUT_S, cluster.controller_users),
            total_timeout_s=_TOTAL_TIMEOUT_S,
            max_response_bytes=_MAX_RESPONSE_BYTES,
        )

    async def _deliver_alone(self, client: ControllerClient, item: Item) -> None:
        try:
            await self._settle([item], await self._post(client, [item]))
        except UsageError as error:
            await self._reject(item, str(error))

    async def _post(self, client: ControllerClient, items: list[Item]) -> dict[str, Any]:
        spooled = await self._work(self._spool.count)
        body = {
            "items": [{"record": item.record, "trace": item.trace} for item in items],
            "node": self._node(),
            "spooled": max(0, spooled - len(items)),
        }
        return await asyncio.to_thread(client.post, "/v1/records", body)

    async def _settle(self, items: list[Item], answer: dict[str, Any]) -> None:
        accepted = set(answer.get("accepted") or [])
        refused = {
            items[entry["index"]].record_id: str(entry.get("error"))
            for entry in answer.get("rejected") or []
            if isinstance(entry.get("index"), int) and 0 <= entry["index"] < len(items)
        }
        for item in items:
            if item.record_id in accepted:
                await self._work(self._spool.remove, item.name)
            elif item.record_id in refused:
                await self._reject(item, refused[item.record_id])
        if not (accepted or refused):
            raise EnergyError(
                f"controller {self.cluster.controller_url}", "took no record and named no reason"
            )

    async def _reject(self, item: Item, reason: str) -> None:
        """A trace that cannot be taken must not cost the record; a record that cannot is put aside."""
        if item.trace is not None:
            log.error("trace of record %s refused: %s", item.record_id, reason)
            await self._work(self._spool.drop_trace, item.name)
            return
        log.error("record %s refused, put aside in the spool: %s", item.record_id, reason)
        await self._work(self._spool.reject, item.name)
