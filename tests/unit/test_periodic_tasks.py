"""Tests of the periodic tasks of senergyctld.

All tasks end when the daemon stops, and when one of them fails. The commands for which tasks wait are
stopped before the tasks end. A task with an unexpected error starts again.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from slurm_energy.controller.periodic_tasks import kept_running, run_together, run_until
from slurm_energy.errors import UnavailableError
from slurm_energy.log_once import UnexpectedErrorLog


async def _endless(events: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        events.append(f"{name} cancelled")


def test_all_tasks_end_when_the_daemon_stops() -> None:
    events: list[str] = []

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_soon(stop.set)
        tasks = [_endless(events, "first"), _endless(events, "second")]
        await run_until(stop, tasks, lambda: events.append("stopped commands"))

    asyncio.run(run())
    assert events == ["stopped commands", "first cancelled", "second cancelled"]


def test_the_error_of_a_task_ends_the_others() -> None:
    events: list[str] = []

    async def failing() -> None:
        raise ValueError("lost")

    async def run() -> None:
        tasks = [_endless(events, "first"), failing()]
        await run_until(asyncio.Event(), tasks, lambda: events.append("stopped commands"))

    with pytest.raises(ValueError, match="lost"):
        asyncio.run(run())
    assert events == ["stopped commands", "first cancelled"]


def test_the_error_of_one_of_several_tasks_cancels_the_others_before_it_is_raised() -> None:
    events: list[str] = []

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        asyncio.run(run_together(_endless(events, "first"), failing(), _endless(events, "second")))
    assert events == ["first cancelled", "second cancelled"]


def test_a_task_starts_again_after_an_unexpected_error_which_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts: list[int] = []

    async def task() -> None:
        starts.append(len(starts))
        if len(starts) < 4:
            raise OverflowError("math range error")

    asyncio.run(kept_running(task, UnexpectedErrorLog(logging.getLogger("test")), pause_s=0.0))
    assert starts == [0, 1, 2, 3]
    (line,) = caplog.records
    assert "started again" in line.message and line.exc_info


def test_an_expected_error_of_a_task_is_raised() -> None:
    async def task() -> None:
        raise UnavailableError("the lease is lost")

    with pytest.raises(UnavailableError):
        asyncio.run(kept_running(task, UnexpectedErrorLog(logging.getLogger("test")), pause_s=0.0))
