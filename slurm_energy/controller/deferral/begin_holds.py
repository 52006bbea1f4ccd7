"""Holding of pending jobs by setting their begin time to a later time.

While a job is held, its begin time is set to a later time again and again. If senergyctld stops, the begin
times pass and the jobs start. Thus a stopped senergyctld never blocks the queue.

Power budgets, quotas and deferral may hold the same job at the same time. Each of the three is called a
holder. The job starts when no holder holds it any more, and not before the begin time that its user
requested.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from slurm_energy.controller.deferral.begin_times import BeginTimes, MovedBegin
from slurm_energy.slurm.queue.columns import QueueColumns
from slurm_energy.slurm.queue.job_update import JobUpdater

HOLD_S: Final = 300.0
"""Time by which a begin time is moved ahead. Jobs wait at most this long after senergyctld has stopped."""
_SHOWN: Final = 3
_ROUNDING_S: Final = 1.0  # Slurm's times are whole seconds


class BeginTimeHolds:
    """The pending jobs that one part of senergyctld holds by moving their begin times.

    This part of senergyctld is the deferral, the quotas or the power budgets. Each part has its own object
    of this class.

    Args:
        updater: changes jobs.
        begin_times: begin times of pending jobs, shared with the other parts of senergyctld that delay jobs;
            None means that no other part delays jobs.
    """

    def __init__(self, updater: JobUpdater, begin_times: BeginTimes | None = None) -> None:
        self._updater = updater
        self._times = begin_times or BeginTimes()
        self._held: dict[int, None] = {}
        self._names: dict[int, str] = {}

    @property
    def jobs(self) -> Collection[int]:
        """Ids of the held jobs."""
        return self._held.keys()

    @property
    def moved_jobs(self) -> Collection[int]:
        """Ids of the pending jobs whose begin time senergyctld has moved, for any reason.

        The reason may be the deferral, a quota or a power budget.
        """
        return self._times.moved.keys()

    def may_have_moved(self, job: int, begin_s: float, now_unix_s: float) -> bool:
        """Return whether a part of senergyctld has moved, or may have moved, the begin time of a job.

        After a restart of senergyctld, it is unknown which begin times quotas and power budgets have moved.
        They move a begin time at most `HOLD_S` ahead.

        Args:
            job: id of the pending job.
            begin_s: current begin time of the job in Slurm; NaN means that the job has no begin time.
            now_unix_s: the time now.
        """
        is_near = now_unix_s < begin_s <= now_unix_s + HOLD_S + _ROUNDING_S
        return is_near or job in self._times.moved

    @property
    def times(self) -> BeginTimes:
        """The begin times of pending jobs, shared with other parts of senergyctld that delay jobs."""
        return self._times

    def set_names(self, names: Mapping[int, str]) -> None:
        """Set the names by which scontrol addresses the pending jobs, by job id. Forget all other jobs."""
        self._names = dict(names)
        with self._times.lock:
            for job in [job for job in self._held if job not in self._names]:
                self._forget(job)

    def adopt(self, job: int, begin_s: float, now_unix_s: float) -> None:
        """Continue the hold of a job that an earlier senergyctld process has held by its begin time.

        The present begin time of the job is remembered. When the hold ends, the job does not start before
        this time.
        """
        with self._times.lock:
            self._times.moved.setdefault(job, MovedBegin(begin_s, begin_s, now_unix_s))
            self._claim(job)

    def hold(
        self,
        jobs: Sequence[int],
        begin_s: Mapping[int, float],
        now_unix_s: float,
        until_s: Mapping[int, float] | None = None,
        hold_s: float = HOLD_S,
    ) -> tuple[str, ...]:
        """Hold the given jobs by their begin time, and release all other jobs that this holder held.

        A holder is one of the parts of senergyctld that delay jobs: deferral, quotas or power budgets.

        Args:
            jobs: ids of the jobs to hold, the most important first.
            begin_s: current begin time of each pending job in Unix time; NaN means that the job has no begin
                time.
            now_unix_s: the time now.
            until_s: end of the hold of each job in Unix time; None means that the holds have no end.
            hold_s: maximum time from now to the new begin time.

        Returns:
            The failures, one line of text each.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        wanted = set(jobs)
        problems: list[str] = []
        with self._times.lock:
            due: dict[int, list[int]] = {}
            for job in jobs:
                end_s = math.inf if until_s is None else until_s[job]
                target_s = min(now_unix_s + hold_s, end_s)
                is_last = target_s == end_s and begin_s[job] < int(end_s)
                if is_last or self._must_move(job, begin_s[job], now_unix_s, target_s):
                    due.setdefault(int(target_s), []).append(job)
                elif job in self._times.moved:
                    self._claim(job)  # held by another holder for long enough
            for target, late in due.items():
                problems += self._move(late, begin_s, target, now_unix_s)
            released = self.release([job for job in self._held if job not in wanted], now_unix_s)
        return *problems[:_SHOWN], *released

    def release(self, jobs: Iterable[int] | None, now_unix_s: float) -> tuple[str, ...]:
        """Release held jobs and return the failures, one line of text for each failure.

        Several holders (deferral, quotas, power budgets) can hold the same job. A job that another holder
        also holds stays held.

        Args:
            jobs: ids of the jobs to release; None means all jobs that this holder holds.
            now_unix_s: the current time.
        """
        problems: list[str] = []
        with self._times.lock:
            by_begin: dict[int | None, list[int]] = {}
            for job in list(self._held if jobs is None else jobs):
                moved = self._times.moved[job]
                begin = int(moved.original_s) if moved.original_s > now_unix_s else None
                has_passed = begin is None and moved.set_s <= now_unix_s
                if has_passed or self._times.is_held_by_others(id(self), job):
                    self._forget(job)  # another holder decides, or the begin time has passed by itself
                else:
                    by_begin.setdefault(begin, []).append(job)
            for begin, group in by_begin.items():
                result = self._updater.set_begin(group, self._names, begin)
                for done in (*result.done, *result.gone):
                    self._forget(done)
                problems += [f"job {job} cannot be released: {why}" for job, why in result.refused.items()]
        return tuple(problems[:_SHOWN])

    def forget(self, job: int) -> None:
        """Stop holding a job, but leave its begin time unchanged."""
        with self._times.lock:
            self._forget(job)

    def _must_move(self, job: int, begin_s: float, now_unix_s: float, target_s: float) -> bool:
        """Return whether the begin time of a held job must be changed to `target_s` in Slurm.

        There are two cases. In the first case, the current begin time is too early: it is not later than the
        middle between now and `target_s`. It must then be moved, even if a user has chosen it. In the second
        case, the current begin time is too late. It is then moved to an earlier time, but only if
        senergyctld has chosen the current begin time.

        Args:
            job: id of the job.
            begin_s: current begin time of the job in Slurm.
            now_unix_s: the time now.
            target_s: wanted begin time.
        """
        if not begin_s > now_unix_s + (target_s - now_unix_s) / 2:
            return True
        moved = self._times.moved.get(job)
        if moved is None or self._times.is_held_by_others(id(self), job):
            return False
        too_late = begin_s > max(target_s, moved.original_s) + _ROUNDING_S
        return too_late and abs(begin_s - moved.set_s) <= _ROUNDING_S

    def _move(
        self, jobs: Sequence[int], begin_s: Mapping[int, float], target: int, now_unix_s: float
    ) -> list[str]:
        result = self._updater.set_begin(jobs, self._names, target)
        for job in result.done:
            moved = self._times.moved.setdefault(job, MovedBegin(begin_s[job]))
            moved.set_s, moved.changed_s = float(target), now_unix_s
            self._claim(job)
        for job in result.gone:
            if job in self._held:
                self._forget(job)
        return [f"job {job} cannot be held: {why}" for job, why in result.refused.items()]

    def _claim(self, job: int) -> None:
        self._held[job] = None
        self._times.claim(id(self), job)

    def _forget(self, job: int) -> None:
        self._held.pop(job, None)
        self._times.withdraw(id(self), job)


def pending_name(queue: QueueColumns, row: int) -> str:
    """Return the name by which scontrol addresses a pending job with all its pending tasks.

    The job is given by its row in the queue.
    """
    tasks, array = queue.array_tasks[row], int(queue.array_job_id[row])
    if array and int(queue.array_task_id[row]) < 0 and tasks:
        return f"{array}_[{tasks}]"
    return queue.scontrol_name(row)
