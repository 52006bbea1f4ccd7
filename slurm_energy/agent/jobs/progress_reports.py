"""Units of work, for example training steps, that processes of running jobs report.

The tuner collects the reports.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from slurm_energy.agent.jobs.sessions import Session, SessionTable
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.signals.step_reports import MAX_REPORT_BYTES
from slurm_energy.agent.sockets.messages import ProgressMessage
from slurm_energy.errors import ForbiddenError, UsageError

MAX_PROCESSES: Final = 1024
"""Maximum number of processes of one job on one node whose cumulative work is kept. A further process
replaces a process that has been silent for `_ENDED_AFTER_S` seconds."""
_ENDED_AFTER_S: Final = 300.0
MAX_PENDING: Final = 8192
"""Maximum number of reports of one job that wait for the tuner. Older reports are dropped. Reports are
cumulative, so this loses no work."""
MAX_NODE_STEPS_BYTES: Final = 24 << 20
"""Memory for the reported steps of all jobs of a node. If the memory is used up, each job may use at most an
equal share. The total then stays below twice this size, and no job prevents the reports of another job."""
_MESSAGES_PER_S: Final = 20.0
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.5, 30.0
_STEPS_INTERVAL_S: Final = 10.0
"""Seconds between two reports of a process that reports steps."""
_MAX_AGE_S: Final = 10.0


class ProgressReport(NamedTuple):
    """The cumulative work of one process at one time, as `ProgressTracker.report` accepts it.

    Attributes:
        units: units of work that the process has completed since its first report.
        time_s: seconds since boot at which the last unit was completed.
        process: key of the process.
    """

    units: float
    time_s: float
    process: str


@dataclass(slots=True)
class _JobProgress:
    """Reports about the progress of one job, which its processes send.

    Attributes:
        first, latest: first and latest report by process.
        pending: reports that the tuner has not collected yet.
        end_s: time at which a process is expected to end its work, by process, in seconds since boot. Only
            processes that have reported the total number of their units of work, and have not exceeded this
            number, have an entry.
    """

    first: dict[str, ProgressReport] = field(default_factory=dict)
    latest: dict[str, ProgressReport] = field(default_factory=dict)
    pending: collections.deque[ProgressReport] = field(
        default_factory=lambda: collections.deque(maxlen=MAX_PENDING)
    )
    end_s: dict[str, float] = field(default_factory=dict)

    def active_processes(self, now_s: float) -> int:
        """Return the number of processes that have reported recently."""
        return sum(now_s - report.time_s <= 2 * _MAX_INTERVAL_S for report in self.latest.values())

    def remove_ended(self, now_s: float) -> bool:
        """Remove the process that has been silent for the longest time, if it counts as ended.

        Return whether the process was removed.
        """
        process = min(self.latest, key=lambda key: self.latest[key].time_s)
        if now_s - self.latest[process].time_s <= _ENDED_AFTER_S:
            return False
        for values in (self.first, self.latest, self.end_s):
            values.pop(process, None)
        return True


class ProgressReports:
    """Progress reports of the running jobs of a node. Reports of ended jobs are deleted.

    Args:
        sessions: sessions of the running jobs.
        clock: the clock of the machine.
    """

    def __init__(self, sessions: SessionTable, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._jobs: dict[tuple[int, int], _JobProgress] = {}

    def receive(self, message: ProgressMessage, reader: int | None = None, pid: int = 0) -> dict[str, Any]:
        """Store a report and return the response.

        Args:
            message: the progress report of one process.
            reader: uid of the sender; None for a user who may report for every job.
            pid: process id of the sender; 0 if unknown.

        Raises:
            NotFoundError: the job does not run here.
            ForbiddenError: the job belongs to another user.
            UsageError: too many processes of the job have reported, or the data about the steps (iterations)
                of the program are too large.
        """
        session = self._sessions.require_run(message.job_id)
        if reader not in (None, session.uid):
            raise ForbiddenError(f"progress: job {message.job_id} belongs to another user")
        self._forget_ended_jobs()
        response: dict[str, Any] = {"interval_s": _STEPS_INTERVAL_S, "steps_bytes": MAX_REPORT_BYTES}
        if message.units is not None:
            response |= self._store_units(session, message, message.units)
        if message.steps is not None:  # last, so that the units count even if the steps are refused
            self._check_room(session)
            session.step_reports.put(message.process, message.steps, pid)
        return response

    def _store_units(self, session: Session, message: ProgressMessage, units: float) -> dict[str, Any]:
        job = self._jobs.setdefault(session.key, _JobProgress())
        process = message.process
        now_s = self._clock.boottime()
        if process not in job.latest and len(job.latest) >= MAX_PROCESSES and not job.remove_ended(now_s):
            raise UsageError(f"progress: more than {MAX_PROCESSES} processes of job {message.job_id} report")
        last = job.latest.get(process)
        before = last.units if message.is_increment and last is not None else 0.0
        report = ProgressReport(before + units, self._time_of(message), process)
        if last is None or report.units < last.units:
            job.first[process] = report
        job.latest[process] = report
        job.pending.append(report)
        remaining_s = _remaining_s(job.first[process], report, message.total)
        if remaining_s is not None:
            job.end_s[process] = report.time_s + remaining_s
        elif message.total is not None:
            job.end_s.pop(process, None)
        longest_s = _MAX_INTERVAL_S if message.steps is None else _STEPS_INTERVAL_S
        interval_s = min(_interval_s(session, job.active_processes(now_s)), longest_s)
        return {"units": report.units, "remaining_s": remaining_s, "interval_s": interval_s}

    def collect(self, key: tuple[int, int]) -> list[ProgressReport]:
        """Return the reports of a job that arrived since the last call, ordered by arrival.

        Args:
            key: job id and restart count.
        """
        job = self._jobs.get(key)
        if job is None:
            return []
        reports = list(job.pending)
        job.pending.clear()
        return reports

    def remaining_s(self, key: tuple[int, int]) -> float | None:
        """Return the expected seconds to the end of a job's work; None if unknown.

        The time is unknown if no process has reported a total, or if the job still runs after its expected
        end.

        Args:
            key: job id and restart count.
        """
        job = self._jobs.get(key)
        if job is None or not job.end_s:
            return None
        remaining_s = max(job.end_s.values()) - self._clock.boottime()
        return remaining_s if remaining_s > 0 else None

    def _check_room(self, session: Session) -> None:
        sessions = self._sessions.values()
        if sum(one.step_reports.packed_bytes for one in sessions) < MAX_NODE_STEPS_BYTES:
            return
        share = MAX_NODE_STEPS_BYTES // len(sessions)
        if session.step_reports.packed_bytes >= share:
            raise UsageError(f"steps: those of all jobs on this node exceed {MAX_NODE_STEPS_BYTES} bytes")

    def _time_of(self, message: ProgressMessage) -> float:
        """Return the time at which the last unit was completed, in seconds since boot.

        The result is the time in the message if that time is recent, otherwise the present time.

        The time in the message may be wrong, because a sender in a container may have another clock.
        """
        now = self._clock.boottime()
        recent = message.time_s is not None and 0 <= now - message.time_s <= _MAX_AGE_S
        return message.time_s if recent and message.time_s is not None else now

    def _forget_ended_jobs(self) -> None:
        for key in self._jobs.keys() - self._sessions.keys():
            del self._jobs[key]


def _interval_s(session: Session, processes: int) -> float:
    """Return the seconds that a process should wait between reports.

    A job that is not tuned gets the maximum interval.
    """
    if session.tuning is None or session.tuning["mode"] == "off":
        return _MAX_INTERVAL_S
    return min(_MAX_INTERVAL_S, max(_MIN_INTERVAL_S, processes / _MESSAGES_PER_S))


def _remaining_s(first: ProgressReport, last: ProgressReport, total: float | None) -> float | None:
    """Return how many seconds a process needs for its remaining units of work at its mean rate.

    Return None if the rate or the total number of units is unknown. The total is also unknown if the process
    has exceeded the total that it reported. For example, a program that calls `track(loader)` in each epoch
    reports the units of one epoch as the total.
    """
    units, seconds = last.units - first.units, last.time_s - first.time_s
    if total is None or last.units > total or units <= 0 or seconds <= 0:
        return None
    return (total - last.units) * seconds / units
