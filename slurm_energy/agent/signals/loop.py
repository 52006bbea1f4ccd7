"""The background task that samples the signals of jobs, with a thread of its own for the sensors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from slurm_energy.agent.signals.node_reader import SignalPass
from slurm_energy.agent.signals.sampling import SignalSampling
from slurm_energy.agent.worker_thread import TimerGrid, WorkerThread

_MAX_CPU_SHARE: Final = 0.02
"""Maximum share of one core that sampling may take; passes that cost more become rarer."""
_MAX_DELAY_S: Final = 0.25
"""Maximum delay of the first pass of a job, so that many jobs that begin together share it."""


class SignalLoop:
    """Makes a pass over the sensors at the shortest interval of a running job, and when a job begins.

    Args:
        sampling: jobs and recordings.
        work: runs a function in the worker thread of the job manager.
        thread: thread that reads the sensors.
    """

    def __init__(
        self, sampling: SignalSampling, work: Callable[..., Awaitable[Any]], thread: WorkerThread
    ) -> None:
        self._sampling = sampling
        self._work = work
        self._thread = thread
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Start a pass if a new job is to be sampled, so that the first interval of the job starts with it.

        The pass is delayed for a short time if the last one has just ended.
        """
        if not self._wake.is_set() and self._sampling.has_new_job:
            self._wake.set()

    async def run(self) -> None:
        """Sample until the task is cancelled."""
        loop = asyncio.get_running_loop()
        grid, due_s, free_s = TimerGrid(0.0, 0.0), 0.0, 0.0
        while True:
            interval_s = self._sampling.interval_s
            if interval_s is None:
                await self._read()  # closes what the last jobs left open
                await self._wake.wait()
                interval_s = self._sampling.interval_s
                if interval_s is None:
                    self._wake.clear()
                    continue
            elif loop.time() < max(due_s, free_s):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), max(due_s, free_s) - loop.time())
            if self._wake.is_set() and loop.time() < free_s:
                await asyncio.sleep(min(_MAX_DELAY_S, free_s - loop.time()))
            interval_s = self._sampling.interval_s or interval_s  # a job with another one may have begun
            if interval_s != grid.interval_s:
                grid = TimerGrid(loop.time(), interval_s)
            self._wake.clear()  # the pass includes the jobs that have begun so far
            result = await self._read()
            free_s = loop.time() + result.cpu_s / _MAX_CPU_SHARE
            due_s = grid.next(loop.time())

    async def close(self) -> None:
        """End the thread after its current pass, and close the files of the jobs."""
        await asyncio.to_thread(self._thread.shutdown)
        self._sampling.reader.close()

    async def _read(self) -> SignalPass:
        jobs, node = await self._work(self._sampling.jobs)
        result: SignalPass = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._sampling.reader.read, jobs, node
        )
        await self._work(self._sampling.add, result)
        return result
