"""Limits on concurrent requests, per user and for all users together. This module does not use HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator
from typing import Final

from slurm_energy.errors import UnavailableError

WAIT_S: Final = 30.0
RETRY_AFTER_S: Final = 2
MAX_REST_S: Final = 0.5


class BusyError(UnavailableError):
    """A user has too many requests in progress, or the server is overloaded."""


class _UserQueue:
    """The requests of one user: requests in progress, and requests that wait for their turn."""

    def __init__(self, concurrent: int) -> None:
        self.turns = asyncio.Semaphore(concurrent)
        self.present = 0


class RequestLimiter:
    """Limiter of concurrent requests. The requests of one user are admitted in the order of arrival.

    Args:
        concurrent: maximum number of requests that one ordinary user may have in progress.
        waiting: maximum number of further requests of one ordinary user that wait for their turn.
        shared: maximum number of requests that all users together may have in progress. Requests of trusted
            users (operators and agents) do not count.
        trusted_concurrent: maximum number of requests that one trusted user may have in progress.
        trusted_waiting: maximum number of further requests of one trusted user that wait for their turn.
        rest_factor: pause between two requests of an ordinary user, as a multiple of the duration of the
            first request. One user thus gets only a fraction of the processor.
    """

    def __init__(
        self,
        concurrent: int,
        waiting: int,
        shared: int,
        trusted_concurrent: int,
        trusted_waiting: int,
        rest_factor: float = 0.0,
    ) -> None:
        self._bounds = {False: (concurrent, waiting), True: (trusted_concurrent, trusted_waiting)}
        self._shared = asyncio.Semaphore(shared)
        self._rest_factor = rest_factor
        self._queues: dict[tuple[int, bool], _UserQueue] = {}

    @contextlib.asynccontextmanager
    async def user_slot(self, uid: int, *, trusted: bool) -> AsyncIterator[None]:
        """Context manager that waits until the user may have another request in progress.

        The context occupies one of the user's slots for requests during the `with` block.

        `trusted` marks operators and agents. Separate limits apply to them.

        Raises:
            BusyError: too many requests of the user wait, or no slot became free in time.
        """
        concurrent, waiting = self._bounds[trusted]
        user_queue = self._queues.setdefault((uid, trusted), _UserQueue(concurrent))
        if user_queue.present >= concurrent + waiting:
            raise BusyError(
                f"uid {uid}", f"{user_queue.present} of your requests are in progress", "try again"
            )
        user_queue.present += 1
        began_s: float | None = None
        try:
            await _acquire(user_queue.turns)
            began_s = time.monotonic()
            yield
        finally:
            rest_s = 0.0
            if began_s is not None and not trusted:
                rest_s = min(MAX_REST_S, self._rest_factor * (time.monotonic() - began_s))
            leave = functools.partial(self._leave, (uid, trusted), user_queue, had_turn=began_s is not None)
            if rest_s > 0:
                asyncio.get_running_loop().call_later(rest_s, leave)
            else:
                leave()

    def _leave(self, key: tuple[int, bool], user_queue: _UserQueue, *, had_turn: bool) -> None:
        if had_turn:
            user_queue.turns.release()
        user_queue.present -= 1
        if not user_queue.present:
            del self._queues[key]

    @contextlib.asynccontextmanager
    async def shared_slot(self, *, trusted: bool) -> AsyncIterator[None]:
        """Context manager that waits for a request slot shared by all users.

        The context occupies the slot during the `with` block.

        `trusted` marks operators and agents, whose requests need no shared slot.

        Raises:
            BusyError: no slot became free in time.
        """
        if trusted:
            yield
            return
        await _acquire(self._shared)
        try:
            yield
        finally:
            self._shared.release()


class ByteBudget:
    """Limit on the memory that the bodies of simultaneous requests use.

    A body is read only when enough bytes are free.

    Args:
        total_bytes: maximum bytes of all bodies in memory.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = self._free_bytes = total_bytes
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def reserve(self, body_bytes: int) -> AsyncIterator[None]:
        """Context manager that waits for `body_bytes` free bytes.

        The bytes are reserved during the `with` block.

        Raises:
            BusyError: the bytes did not become free in time.
        """
        needed = min(body_bytes, self._total_bytes)
        try:
            async with asyncio.timeout(WAIT_S), self._changed:
                await self._changed.wait_for(lambda: self._free_bytes >= needed)
                self._free_bytes -= needed
        except TimeoutError:
            raise BusyError("controller", "too many deliveries at a time", "try again") from None
        try:
            yield
        finally:
            self._free_bytes += needed
            async with self._changed:
                self._changed.notify_all()


async def _acquire(turns: asyncio.Semaphore) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            await turns.acquire()
    except TimeoutError:
        raise BusyError("controller", "too many requests at a time", "try again") from None
