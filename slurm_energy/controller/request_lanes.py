"""How many requests are worked on at a time: of one user, and of all users together. No HTTP here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from slurm_energy.errors import UnavailableError

WAIT_S: Final = 30.0
RETRY_AFTER_S: Final = 1


class BusyError(UnavailableError):
    """A user has too many requests in progress, or the server has too much to do."""


class _Lane:
    """The requests of one user: those in progress and those that wait for their turn."""

    def __init__(self, width: int) -> None:
        self.turns = asyncio.Semaphore(width)
        self.present = 0


class RequestLanes:
    """Gives turns to requests, to those of one user in the order of their coming.

    Args:
        width: requests of one user in progress.
        waiting: further requests of one user that may wait.
        together: requests of all users in progress; those of trusted users do not count.
        trusted_width, trusted_waiting: as `width` and `waiting`, for operators and agents.
    """

    def __init__(
        self, width: int, waiting: int, together: int, trusted_width: int, trusted_waiting: int
    ) -> None:
        self._bounds = {False: (width, waiting), True: (trusted_width, trusted_waiting)}
        self._together = asyncio.Semaphore(together)
        self._lanes: dict[tuple[int, bool], _Lane] = {}

    @contextlib.asynccontextmanager
    async def of_user(self, uid: int, *, trusted: bool) -> AsyncIterator[None]:
        """Wait for the user's turn and keep it for the block.

        Raises:
            BusyError: too many requests of the user wait, or the turn did not come in time.
        """
        width, waiting = self._bounds[trusted]
        lane = self._lanes.setdefault((uid, trusted), _Lane(width))
        if lane.present >= width + waiting:
            raise BusyError(f"uid {uid}", f"{lane.present} of your requests are in progress", "try again")
        lane.present += 1
        try:
            async with _turn(lane.turns):
                yield
        finally:
            lane.present -= 1
            if not lane.present:
                del self._lanes[uid, trusted]

    @contextlib.asynccontextmanager
    async def of_all(self, *, trusted: bool) -> AsyncIterator[None]:
        """Wait for a turn among all users' requests and keep it for the block; the same error."""
        if trusted:
            yield
            return
        async with _turn(self._together):
            yield


class ByteBudget:
    """Bounds the memory of bodies: a body waits until as many bytes are free as it has.

    Args:
        total_bytes: bytes of all bodies in memory.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = self._free_bytes = total_bytes
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def hold(self, body_bytes: int) -> AsyncIterator[None]:
        """Keep a number of bytes for the block.

        Raises:
            BusyError: they did not become free in time.
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


@contextlib.asynccontextmanager
async def _turn(turns: asyncio.Semaphore) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(WAIT_S):
            await turns.acquire()
    except TimeoutError:
        raise BusyError("controller", "too many requests at a time", "try again") from None
    try:
        yield
    finally:
        turns.release()
