"""Holding of pending jobs of accounts or users that have used too much of their quota.

Jobs are held if the used part of the quota exceeds the hold level. The module needs numpy.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.controller.deferral.begin_holds import BeginTimeHolds, pending_name
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.priority.quota_levels import QuotaLevel, QuotaStandings
from slurm_energy.slurm.queue.columns import PENDING, QueueSource
from slurm_energy.slurm.queue.job_update import JobUpdater


class QuotaHolds:
    """Holds on pending jobs under quotas whose use exceeds the hold level.

    Methods wait for Slurm's commands: call the methods in a thread.

    Args:
        source: reads the queue.
        updater: changes jobs.
        begin_times: begin times of pending jobs, shared with the other parts of senergyctld that delay jobs;
            None means that no other part delays jobs.
    """

    def __init__(
        self, source: QueueSource, updater: JobUpdater, begin_times: BeginTimes | None = None
    ) -> None:
        self._source = source
        self._holds = BeginTimeHolds(updater, begin_times)

    @property
    def count(self) -> int:
        """Number of held jobs."""
        return len(self._holds.jobs)

    def apply(self, standings: QuotaStandings, now_unix_s: float) -> tuple[str, ...]:
        """Hold the pending jobs under quotas whose use exceeds the hold level; release all others.

        The hold level is the fraction of a quota from which pending jobs are held. The queue is read only if
        the use of a quota exceeds its hold level, or if jobs are held.

        Jobs that wait for other jobs are held too: slurmctld starts them as soon as their dependency is
        satisfied, which may be before the next call. They are held last, because they are the least likely to
        start before the next call.

        Args:
            standings: present use of each quota.
            now_unix_s: the current time.

        Returns:
            The failures, one line of text each.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        if not standings.has_holds and not self._holds.jobs:
            return ()
        queue = self._source.read()
        names: dict[int, str] = {}
        over: list[int] = []
        for row in np.lexsort((queue.job_id, -queue.priority, queue.dependent)).tolist():
            job = int(queue.job_id[row])
            if queue.state[row] != PENDING or queue.held[row]:
                continue
            names[job] = pending_name(queue, row)
            use = standings.limiting(queue.account[row], queue.user[row])
            if use is not None and use.level is QuotaLevel.HOLD:
                over.append(job)
        self._holds.set_names(names)
        begin_s = dict(zip(queue.job_id.tolist(), queue.eligible_s.tolist(), strict=True))
        return self._holds.hold(over, begin_s, now_unix_s)

    def release_all(self, now_unix_s: float) -> tuple[str, ...]:
        """Release every job that a quota holds. Return the failures, each as one line of text."""
        return self._holds.release(None, now_unix_s)
