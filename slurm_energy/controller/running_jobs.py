"""Cache of the running jobs.

One squeue command fills the cache for all requests of agents.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.queue.running_jobs import AllocatedJob, read_running_jobs

MAX_AGE_S: Final = 30.0
"""Age after which the jobs are read again."""
MIN_AGE_S: Final = 2.0
"""Age after which the jobs are read again because a job is missing that may just have started."""


class RunningJobCache:
    """Cache of the running jobs. Simultaneous requests share one squeue command.

    Args:
        run: runs squeue.
        clock: returns monotonic seconds.
    """

    def __init__(self, run: Runner, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._jobs: Mapping[int, AllocatedJob] = {}
        self._read_at_s = self._failed_at_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    @property
    def job_ids(self) -> frozenset[int]:
        """Ids of the jobs that were running at the last reading."""
        return frozenset(self._jobs)

    async def find(self, job_id: int, restart_count: int) -> AllocatedJob | None:
        """Return a running job if it has the given number of earlier requeues.

        The result is None if Slurm does not run the job, or runs it with another number.

        Args:
            job_id: Slurm's job id.
            restart_count: number of earlier requeues of the job.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        job = await self._find(job_id, MAX_AGE_S)
        if job is None or job.restart_count != restart_count:
            job = await self._find(job_id, MIN_AGE_S)
        return job if job is not None and job.restart_count == restart_count else None

    async def read(self, max_age_s: float) -> Mapping[int, AllocatedJob]:
        """Return all running jobs by id, read at most `max_age_s` ago.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        await self._find(0, max(max_age_s, MIN_AGE_S))
        return self._jobs

    async def _find(self, job_id: int, max_age_s: float) -> AllocatedJob | None:
        if self._clock() - self._read_at_s > max_age_s:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)
        return self._jobs.get(job_id)

    async def _read(self) -> None:
        began_s = self._clock()
        if began_s - self._failed_at_s < MIN_AGE_S:
            raise UnavailableError("squeue", "slurmctld did not answer")
        try:
            self._jobs = await asyncio.to_thread(read_running_jobs, self._run)
        except EnergyError:
            self._failed_at_s = self._clock()
            raise
        self._read_at_s = began_s
