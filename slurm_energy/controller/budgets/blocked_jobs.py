"""Pending jobs that Slurm would not start even if their power were free.

Slurm states why a job waits, for example because of a limit of its QOS. The reason may change from one
scheduling cycle to the next: one of Slurm's schedulers checks licenses first, and the other one checks limits
first. A job that needs nodes of another partition also shows different reasons in turn. A job therefore
counts as blocked only if it has shown such a reason for some time. It remains blocked for some time after
Slurm last showed such a reason, because a job that senergyctld holds shows only the reason BeginTime.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from slurm_energy.priority.scheduling_tables import blocked_rows
from slurm_energy.scheduling.queue import Bools
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns

BLOCKED_AFTER_S: Final = 300.0
"""Time for which a job must show such a reason without interruption, longer than a cycle of backfill."""
BLOCKED_FOR_S: Final = 600.0
"""Time for which a blocked job counts as blocked after it last showed such a reason."""


class BlockedJobs:
    """Times at which pending jobs showed a reason for which Slurm would not start them with free power."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}  # by job id: start of the uninterrupted time with such a reason
        self._shown_s: dict[int, float] = {}  # by id of a blocked job: last time with such a reason

    def update(self, queue: QueueColumns, now_unix_s: float) -> frozenset[int]:
        """Return the ids of the pending jobs that wait for something other than resources and power.

        Args:
            queue: the jobs, with the reasons that Slurm shows now.
            now_unix_s: the time now.
        """
        rows = (queue.state == PENDING) & _needs_more_than_power(queue)
        shown = queue.job_id[rows].tolist()
        self._since_s = {job: min(self._since_s.get(job, now_unix_s), now_unix_s) for job in shown}
        for job, since_s in self._since_s.items():
            if job in self._shown_s or now_unix_s - since_s >= BLOCKED_AFTER_S:
                self._shown_s[job] = now_unix_s
        self._shown_s = {
            job: shown_s
            for job, shown_s in self._shown_s.items()
            if abs(now_unix_s - shown_s) < BLOCKED_FOR_S
        }
        return frozenset(self._shown_s)


def _needs_more_than_power(queue: QueueColumns) -> Bools:
    lacks_licenses = np.array([reason == "Licenses" for reason in queue.reason], np.bool_)
    blocked: Bools = blocked_rows(queue) & ~lacks_licenses
    return blocked
