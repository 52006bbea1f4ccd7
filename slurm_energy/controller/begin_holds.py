"""Holding of pending jobs by their begin time.

The begin time is moved ahead again and again. When senergyctld stops, the begin times pass and the jobs
start: our absence never blocks the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from slurm_energy.slurm.queue.columns import QueueColumns
from slurm_energy.slurm.queue.job_update import JobUpdater

HOLD_S: Final = 300.0
"""Time by which the begin of a job is moved; jobs wait at most this long after senergyctld has stopped."""
_SHOWN: Final = 3


class BeginTimeHolds:
    """The pending jobs that are held.

    Args:
        updater: changes jobs.
    """

    def __init__(self, updater: JobUpdater) -> None:
        self._updater = updater
        self._original_s: dict[int, float] = {}  # begin time that the user requested, by held job
        self._names: dict[int, str] = {}

    @property
    def jobs(self) -> Collection[int]:
        """Ids of the held jobs."""
        return self._original_s.keys()

    def set_names(self, names: Mapping[int, str]) -> None:
        """Set the names for scontrol of all pending jobs by id, and forget jobs that are not among them."""
        self._names = dict(names)
        self._original_s = {job: begin for job, begin in self._original_s.items() if job in self._names}

    def hold(self, jobs: Sequence[int], begin_s: Mapping[int, float], now_unix_s: float) -> tuple[str, ...]:
        """Hold jobs, and release the others that were held.

        Args:
            jobs: ids of the jobs to hold, the most important first.
            begin_s: current begin time of each pending job in Unix time; NaN: none.
            now_unix_s: the time now.

        Returns:
            What failed, in one line each.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        wanted = set(jobs)
        # Users may have moved the begin back.
        late = [job for job in jobs if not begin_s[job] > now_unix_s + HOLD_S / 2]
        result = self._updater.set_begin(late, self._names, int(now_unix_s + HOLD_S))
        for job in result.done:
            self._original_s.setdefault(job, begin_s[job])
        problems = [f"job {job} cannot be held: {why}" for job, why in list(result.refused.items())[:_SHOWN]]
        return *problems, *self.release([job for job in self._original_s if job not in wanted], now_unix_s)

    def release(self, jobs: Sequence[int] | None, now_unix_s: float) -> tuple[str, ...]:
        """Release jobs and return what failed, in one line each.

        Args:
            jobs: ids of held jobs; None: all.
            now_unix_s: the time now.
        """
        problems: tuple[str, ...] = ()
        for job in list(self._original_s) if jobs is None else jobs:
            original = self._original_s[job]
            begin = int(original) if original > now_unix_s else None
            result = self._updater.set_begin([job], self._names, begin)
            for done in (*result.done, *result.gone):
                self._original_s.pop(done, None)
            problems += tuple(f"job {job} cannot be released: {why}" for why in result.refused.values())
        return problems[:_SHOWN]


def pending_name(queue: QueueColumns, row: int) -> str:
    """Return the name by which scontrol addresses the pending job in a row, with all its pending tasks."""
    tasks, array = queue.array_tasks[row], int(queue.array_job_id[row])
    if array and int(queue.array_task_id[row]) < 0 and tasks:
        return f"{array}_[{tasks}]"
    return queue.scontrol_name(row)
