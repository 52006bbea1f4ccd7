"""Periodic queries to Slurm's accounting about jobs whose energy records have arrived.

The module decides when a job is queried, runs the queries and stores the answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.accounting.records import job_facts
from slurm_energy.accounting.records.job_facts import JobLookup
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.slurm.job_accounting import IDS_PER_QUERY, JobFacts, read_job_facts
from slurm_energy.slurm.release import Release, release

GIVE_UP_AFTER_S: Final = 7 * 86400.0
_MAX_PAUSE_S: Final = 3600.0
_UNDELAYED_QUERIES: Final = 6


@dataclass(slots=True)
class QuerySchedule:
    """Schedule of queries about open jobs, which are jobs whose accounting data are incomplete.

    A new job is queried at once. slurmdbd receives a job's end some seconds late, so the first
    `_UNDELAYED_QUERIES` queries follow at the configured interval. After these queries the interval doubles,
    up to an hour.
    """

    interval_s: float
    _queries: dict[JobLookup, tuple[int, float]] = field(default_factory=dict)

    def due(self, jobs: Sequence[JobLookup], now: float) -> list[JobLookup]:
        """Return the jobs about which Slurm must be queried at `now`.

        A job is open while its accounting data are incomplete. Jobs that are not in `jobs` are forgotten.

        Args:
            jobs: all open jobs.
            now: monotonic seconds. With Unix seconds, no query would be due for some time after the clock
                was set back.
        """
        still_open = set(jobs)
        self._queries = {job: entry for job, entry in self._queries.items() if job in still_open}
        return [job for job in jobs if self._queries.get(job, (0, now))[1] <= now]

    def record_query(self, jobs: Sequence[JobLookup], now: float) -> None:
        """Record that Slurm answered a query about these jobs, and plan the next query.

        A job is open while its accounting data are incomplete. An open job is queried again after a pause,
        which grows with the number of its queries.

        Args:
            jobs: the jobs in the query.
            now: monotonic seconds.
        """
        for job in jobs:
            times = self._queries.get(job, (0, 0.0))[0]
            pause_s = min(self.interval_s * 2 ** max(0, times - _UNDELAYED_QUERIES), _MAX_PAUSE_S)
            # Half an interval early, so that a cycle that starts slightly early includes the job.
            self._queries[job] = (min(times + 1, 20), now + pause_s - self.interval_s / 2)


class Enrichment:
    """Periodic task that adds data of Slurm's accounting to energy records.

    The task queries Slurm at most once per cycle.
    """

    def __init__(
        self, store: Store, run: CommandRunner, failures: RepeatedFailureLog, interval_s: float
    ) -> None:
        self._store = store
        self._run = run
        self._failures = failures
        self.schedule = QuerySchedule(interval_s)
        self._last_answer: float | None = None
        self._last_error: str | None = None
        self._open = 0
        self._release: Release | None = None

    async def loop(self) -> None:
        """Add data of Slurm's accounting to energy records, periodically until cancelled.

        Failures are logged.
        """
        while True:
            try:
                await self.cycle()
                self._failures.clear("enrichment")
            except EnergyError as error:
                self._last_error = str(error)
                self._failures.report("enrichment", str(error))
            await asyncio.sleep(self.schedule.interval_s)

    async def cycle(self) -> int:
        """Query accounting data of the jobs that are due.

        Return the number of records that got accounting data.

        After a long outage more jobs may be due than fit into one query. The remaining jobs follow in the
        next cycles.

        Raises:
            EnergyError: Slurm or the database is unavailable; the next cycle retries.
        """
        now = time.time()
        jobs = await self._store.read(job_facts.pending_lookups, now - GIVE_UP_AFTER_S)
        self._open = len(jobs)
        due = self.schedule.due(jobs, time.monotonic())[:IDS_PER_QUERY]
        if not due:
            return 0
        answer = await asyncio.to_thread(self._query_slurm, {job.job_id for job in due})
        outcome = await self._store.write(job_facts.store, answer, due, now)
        self.schedule.record_query(due, time.monotonic())
        self._last_answer, self._last_error = now, None
        self._check_clusters(outcome.other_clusters)
        return outcome.linked

    def status(self) -> dict[str, Any]:
        """Return what the status page shows about the queries to Slurm's accounting.

        The queries add facts about jobs to their energy records (enrichment). Times are Unix seconds.
        """
        return {
            "last_answer": self._last_answer,
            "last_error": self._last_error,
            "open_jobs": self._open,
            "interval_s": self.schedule.interval_s,
            "slurm_release": str(self._release) if self._release else None,
        }

    def _query_slurm(self, job_ids: set[int]) -> dict[int, tuple[JobFacts, ...]]:
        if self._release is None:
            self._release = release(self._run)
        return read_job_facts(job_ids, self._run)

    def _check_clusters(self, others: frozenset[str]) -> None:
        if not others:
            self._failures.clear("cluster name")
            return
        message = f"Slurm calls this cluster '{min(others)}', records do not: set cluster.name to ClusterName"
        self._last_error = message
        self._failures.report("cluster name", message)
