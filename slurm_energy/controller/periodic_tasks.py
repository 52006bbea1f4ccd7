"""The periodic tasks of senergyctld, which run concurrently until the daemon stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


async def run_until(
    stop: asyncio.Event, loops: Iterable[Coroutine[Any, Any, None]], on_cancelled: Callable[[], None]
) -> None:
    """Run endless tasks until `stop` is set or one of them ends. Then cancel all of them.

    A task ends only if it fails or if the daemon must stop. The exception of a failed task is raised.

    Args:
        stop: event that ends the tasks.
        loops: the tasks.
        on_cancelled: function that is called after the tasks were cancelled. It ends other work for which
            the tasks may wait.
    """
    tasks = [asyncio.create_task(loop) for loop in loops]
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (stopping, *tasks):
            task.cancel()
        on_cancelled()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)
