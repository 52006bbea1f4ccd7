"""Periodic task that learns response curves of programs.

The task learns from the records of finished runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from slurm_energy.accounting.history import tuning_runs, tuning_starts
from slurm_energy.accounting.history.tuning_runs import SITE, StoredRun, UnlearnedJob
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.records import EnergyRecord
from slurm_energy.tuning.learned_run import learned_run, workload_class
from slurm_energy.user_lookup import uid_of

COMPLETED: Final = "COMPLETED"
_STARTS_KEPT_S: Final = 30 * 86400.0
_DROP_INTERVAL_S: Final = 3600.0

log = logging.getLogger(__name__)


class TuningLearner:
    """Task that learns from finished runs how time and power of programs depend on settings.

    The results are response curves. A run is used as soon as it has been added to the history of runs.

    Args:
        store: the database.
        failures: log of failures; a repeated failure is logged once.
        site_uids: returns the uids whose characterisation jobs describe the site's hardware.
        retention_days: returns the number of days for which runs are kept.
    """

    def __init__(
        self,
        store: Store,
        failures: RepeatedFailureLog,
        site_uids: Callable[[], frozenset[int]],
        retention_days: Callable[[], float],
    ) -> None:
        self._store, self._failures = store, failures
        self._site_uids, self._retention_days = site_uids, retention_days
        self._next_drop_s = 0.0
        self._learned = 0

    async def loop(self, interval_s: Callable[[], float]) -> None:
        """Learn new runs periodically until cancelled. `interval_s` returns the current interval."""
        while True:
            try:
                await self.learn()
                await self._drop_old()
                self._failures.clear("tuning")
            except EnergyError as error:
                self._failures.report("tuning", str(error))
            await asyncio.sleep(interval_s())

    async def learn(self) -> int:
        """Learn the runs that were added to the history since the last call. Return the number of used jobs.

        Raises:
            UnavailableError: the database refused; the next call retries.
        """
        total = 0
        while jobs := await self._store.read(tuning_runs.unlearned_jobs):
            learned = await asyncio.to_thread(self._learn_jobs, jobs)
            await self._store.write(tuning_runs.store_learned, learned)
            self._learned += sum(run is not None for _, run in learned)
            total += len(jobs)
        return total

    def status(self) -> dict[str, Any]:
        """Return the number of runs from which tuning has learned, for the status page."""
        return {"learned_runs": self._learned}

    def _learn_jobs(self, jobs: list[UnlearnedJob]) -> list[tuple[int, StoredRun | None]]:
        return [(job.key, self._learn_job_safely(job)) for job in jobs]

    def _learn_job_safely(self, job: UnlearnedJob) -> StoredRun | None:
        """Learn from a job. Log an unexpected error, so that one bad record does not block other jobs."""
        try:
            return self._learn_job(job)
        except Exception:
            log.exception("job %s: nothing was learned from its records", job.display_id)
            return None

    def _learn_job(self, job: UnlearnedJob) -> StoredRun | None:
        """Return what tuning can learn from a finished job; None means that nothing can be learned.

        The owner of the run is the user in Slurm's accounting. A job is not used if one of its energy
        records has another uid.
        """
        complete = job.records == max(1, job.nodes or 1)
        uid = uid_of(job.user) if job.user else None
        if job.state != COMPLETED or not job.user or not complete:
            return None
        records = [record for body in job.bodies if (record := _read(body)) is not None]
        if len(records) < len(job.bodies) or any(record.uid != uid for record in records if uid is not None):
            return None
        run = learned_run(
            records,
            job=job.display_id,
            nodes=max(1, job.nodes or 1),
            energy_joules=job.energy_joules,
            seconds=job.end - job.start,
            fingerprint=job.fingerprint,
        )
        if run is None:
            return None
        owner, workload = job.user, run.workload
        if (name := workload_class(run.tag)) is not None:
            if uid is None or uid not in self._site_uids():
                return None  # a user's job with the tag of the site's characterisation
            owner, workload = SITE, name
        if workload is None:
            return None
        return StoredRun(owner, run.hardware, workload, run.fingerprint, run.model, job.end, run.to_json())

    async def _drop_old(self) -> None:
        """Delete runs that exceed the retention time or the size limits, at most once an hour."""
        if time.monotonic() < self._next_drop_s:
            return
        self._next_drop_s = time.monotonic() + _DROP_INTERVAL_S
        before = time.time() - self._retention_days() * 86400
        while await self._store.write(tuning_runs.drop_old, before) >= tuning_runs.BATCH:
            await asyncio.sleep(0)
        await self._store.write(tuning_starts.drop_starts, time.time() - _STARTS_KEPT_S)


def _read(body: str | None) -> EnergyRecord | None:
    try:
        return None if body is None else EnergyRecord.from_json(json.loads(body))
    except (EnergyError, ValueError, RecursionError):
        return None
