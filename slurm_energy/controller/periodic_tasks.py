"""The periodic tasks of senergyctld, which run concurrently until the daemon stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from slurm_energy.errors import EnergyError
from slurm_energy.log_once import UnexpectedErrorLog

PAUSE_S: Final = 10.0
"""Pause after an unexpected error of a task."""


async def kept_running(
    task: Callable[[], Coroutine[Any, Any, None]], errors: UnexpectedErrorLog, pause_s: float = PAUSE_S
) -> None:
    """Run an endless task, and start it again after an unexpected error.

    Without this, a value that one task cannot process would end senergyctld, which would meet the same value
    after each restart. Expected errors (`EnergyError`) are raised.

    Args:
        task: function that returns a new coroutine of the task.
        errors: log of unexpected errors, each with its traceback.
        pause_s: seconds between an error and the next start.
    """
    while True:
        try:
            return await task()
        except EnergyError:
            raise
        except Exception as error:
            errors.report(error, "a task of senergyctld failed and is started again")
            await asyncio.sleep(pause_s)


async def run_together(*tasks: Coroutine[Any, Any, None]) -> None:
    """Run endless tasks concurrently. If one of them fails, cancel the others and raise its error.

    After `asyncio.gather`, the others would go on, beside those that `kept_running` starts next.
    """
    started = [asyncio.create_task(task) for task in tasks]
    try:
        await asyncio.gather(*started)
    finally:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)


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
