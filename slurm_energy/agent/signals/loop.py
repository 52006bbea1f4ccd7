"""The background task that samples the signals of jobs. A separate thread reads the sensors."""

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
_MAX_DELAY_S: Final = 1.0
"""Delay of a job's first pass in seconds, at most half of the interval. Other starting jobs share the pass.

Most jobs have started their first Slurm step by then, which would otherwise need another pass. A job that
ends before the pass costs no pass."""


class SignalLoop:
    """Background task that reads the sensors of all jobs whose signals are sampled.

    A pass is one reading of all sensors. The time between two passes is the shortest sampling interval of
    a running job. When a job begins, a further pass follows soon.

    Args:
        sampling: sampling of the running jobs.
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
        """Request a reading of the sensors now if a new job is to be sampled."""
        if not self._wake.is_set() and self._sampling.has_new_job:
            self._wake.set()

    async def run(self) -> None:
        """Sample the signals of jobs periodically until the task is cancelled."""
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
            if self._wake.is_set():
                await self._delay(interval_s, due_s - loop.time())
                if self._sampling.interval_s is None:
                    self._wake.clear()
                    continue
            interval_s = self._sampling.interval_s or interval_s  # a job with another interval may have begun
            if interval_s != grid.interval_s:
                grid = TimerGrid(loop.time(), interval_s)
            self._wake.clear()  # the pass includes the jobs that have begun so far
            result = await self._read()
            free_s = loop.time() + result.cpu_s / _MAX_CPU_SHARE
            due_s = grid.next(loop.time())

    @staticmethod
    async def _delay(interval_s: float, due_in_s: float) -> None:
        """Wait a short time before a requested reading of the signals.

        Other jobs that start during the wait can use the same reading. The wait never exceeds the time until
        the next regular reading.
        """
        delay_s = min(_MAX_DELAY_S, interval_s / 2)
        await asyncio.sleep(min(delay_s, due_in_s) if due_in_s > 0 else delay_s)

    async def close(self) -> None:
        """Stop the sampling of signals, and close the files of the jobs.

        A reading of the sensors that is in progress is completed first.
        """
        await asyncio.to_thread(self._thread.shutdown)
        self._sampling.reader.close()

    async def _read(self) -> SignalPass:
        jobs, node = await self._work(self._sampling.jobs)
        result: SignalPass = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._sampling.reader.read, jobs, node
        )
        await self._work(self._sampling.add, result)
        return result
