"""Selection of the jobs with the most energy.

The records of a long time window are read in pieces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from slurm_energy.reports.usage import JobUsage

_Key = tuple[str, int, int, float]

MAX_JOBS: Final = 200
"""Maximum number of jobs that are kept for the cluster, for each account and for each user."""


class LargestJobs:
    """Collector of the jobs with the most energy in the cluster, per account and per user.

    The needed memory depends on the number of accounts and users. It does not depend on the number of jobs,
    because there can be millions of jobs a month.
    """

    def __init__(self) -> None:
        self._jobs: dict[_Key, JobUsage] = {}

    @property
    def jobs(self) -> list[JobUsage]:
        """The jobs with the most energy that were selected so far."""
        return list(self._jobs.values())

    def add(self, jobs: Iterable[JobUsage]) -> None:
        """Add the jobs from one piece of the time window.

        A job that runs across the border of two pieces is in both pieces. One of the pieces may lack the
        record of a node, because the job had already ended on this node or had not begun on it. Of the two
        versions of the job, the one with more records is kept.
        """
        for job in jobs:
            key = (job.first.cluster, job.first.job_id, job.first.restart_count, job.job.submit or 0.0)
            earlier = self._jobs.get(key)
            if earlier is None or len(job.records) >= len(earlier.records):
                self._jobs[key] = job
        self._remove_small_jobs()

    def _remove_small_jobs(self) -> None:
        groups: dict[tuple[str, str], list[_Key]] = defaultdict(list)
        for key in sorted(self._jobs, key=self._order):
            job = self._jobs[key]
            names = (
                ("", ""),
                ("account", job.job.account or ""),
                ("user", job.job.user or job.first.user or ""),
            )
            for name in names:
                if len(groups[name]) < MAX_JOBS:
                    groups[name].append(key)
        kept = {key for keys in groups.values() for key in keys}
        self._jobs = {key: job for key, job in self._jobs.items() if key in kept}

    def _order(self, key: _Key) -> tuple[float, int]:
        job = self._jobs[key]
        return -(job.energy_joules or 0.0), job.first.job_id
