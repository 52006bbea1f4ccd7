"""Storage of several deliveries in one transaction.

A commit waits for the disk. At a full hour thousands of nodes deliver at once. With one commit per delivery,
the disk would limit the throughput.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

MAX_DELIVERIES: Final = 200
MAX_ITEMS: Final = 1000
"""Maximum number of items in a transaction, unless a single delivery has more."""
MIN_INTERVAL_S: Final = 0.1
"""Minimum seconds between the beginnings of two transactions. A single delivery does not wait."""
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class WriteBatches(Generic[ItemT, ResultT]):
    """Collector of the deliveries that arrive during a transaction, to store them in the next transaction.

    Args:
        write: stores several deliveries in one transaction and returns a result for each delivery. The
            function raises an error if nothing was stored.
    """

    def __init__(self, write: Callable[[Sequence[Sequence[ItemT]]], Awaitable[Sequence[ResultT]]]) -> None:
        self._write = write
        self._waiting: list[tuple[Sequence[ItemT], asyncio.Future[ResultT]]] = []
        self._task: asyncio.Task[None] | None = None
        self._began_s = -math.inf

    async def add(self, items: Sequence[ItemT]) -> ResultT:
        """Store the items of a delivery, and return the result when the items are on the disk.

        Raises:
            UnavailableError: the database refused the items; nothing is stored.
        """
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all())
        return await future

    async def _write_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(max(0.0, self._began_s + MIN_INTERVAL_S - time.monotonic()))
            self._began_s = time.monotonic()
            batch = self._take()
            try:
                await self._store(batch)
            except BaseException as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                if not isinstance(error, Exception):
                    raise

    def _take(self) -> list[tuple[Sequence[ItemT], asyncio.Future[ResultT]]]:
        count = items = 0
        for delivered, _ in self._waiting[:MAX_DELIVERIES]:
            items += len(delivered)
            if count and items > MAX_ITEMS:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _store(self, batch: Sequence[tuple[Sequence[ItemT], asyncio.Future[ResultT]]]) -> None:
        try:
            results = await self._write([items for items, _ in batch])
        except Exception:  # also an error caused by an unexpected value in a delivery
            if len(batch) == 1:
                raise
            for one in batch:  # a delivery that cannot be stored must not delay the others
                try:
                    await self._store([one])
                except Exception as error:
                    if not one[1].done():
                        one[1].set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():  # its request was cancelled
                future.set_result(result)
