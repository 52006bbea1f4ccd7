"""Monitoring groups (resctrl) of the jobs.

The processor counts the use of each group between two samples.

A monitoring group is created when the first process of a job is known, and removed at the end of the job. A
job has one monitoring group in each resctrl control group that contains its tasks. The tasks of the job are
searched again at growing intervals, to add tasks that are not in the group yet. If no monitoring id is free,
the group cannot be created, and the job's use stays unknown for a while.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.agent.metering.cpu_time_meter import MeteredJob, SampleReason
from slurm_energy.agent.metering.group_counts import CountsBetweenReadings, GroupReadings
from slurm_energy.agent.metering.occupancy import NOT_MONITORED, MonitoredDelta, MonitoredUse
from slurm_energy.devices.cpu import job_tasks
from slurm_energy.devices.cpu.resctrl import ROOT_GROUP, MonitoringFiles, control_of
from slurm_energy.devices.driver import DeviceError
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)

PREFIX = "senergy-"
"""Prefix of the names of the agent's groups. Groups with other names belong to other programs."""
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.95, 10.0
_MIN_QUERY_S = 0.1
_MAX_READING_SHARE = 0.01
"""Maximum fraction of the time that readings may take. Many groups are therefore read less often."""
_MAX_LAG_SHARE = 0.05
"""Maximum delay of a periodic reading after the energy counters, as a fraction of the reading interval.

A reading with a longer delay is discarded, because its counts belong to another time than the energy."""
_FIRST_SEARCH_S, _MAX_SEARCH_S = 0.9, 15.0
_RETRY_S = 30.0
_MONITORING = "monitoring of memory traffic (resctrl)"
_EXHAUSTED = (errno.ENOSPC, errno.EBUSY)


@dataclass(slots=True)
class _MonitoredJob:
    """State of the monitoring of one job by resctrl.

    Attributes:
        job: the job, with the processes that are known now.
        pids: processes that were moved to the job's monitoring groups.
        groups: the job's monitoring groups by resctrl control group.
        has_tasks: whether a task of the job has ever been known.
        is_unknown: whether a part of the job's use since the last reading was not counted in the job's
            groups.
        search_at: time of the next search for the job's tasks, in seconds since boot.
        pause_s: seconds between the next search and the search after it.
        retry_at: time before which no group is created, in seconds since boot.
    """

    job: MeteredJob
    pids: set[int] = field(default_factory=set)
    groups: dict[str, str] = field(default_factory=dict)
    has_tasks: bool = False
    is_unknown: bool = False
    search_at: float = 0.0
    pause_s: float = _FIRST_SEARCH_S
    retry_at: float = 0.0


class MonitoringGroups:
    """Groups by which the kernel (resctrl) measures the memory traffic of each job on a node.

    Args:
        files: the kernel's file system resctrl. None means that the node does not have this file system, or
            that monitoring groups must not be used.
        root: directory that contains /sys and /proc.
        source: function that returns the source of a job's CPU time, given the job id, see
            `JobCpuTimeReader.source`.
        clock: function that returns seconds since boot.
    """

    def __init__(
        self,
        files: MonitoringFiles | None,
        root: Path,
        source: Callable[[int], str | None],
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._root = root
        self._source = source
        self._clock = clock
        self._jobs: dict[str, _MonitoredJob] = {}
        self._counts = CountsBetweenReadings(files.quantities if files else ())
        self._adopted: dict[str, dict[str, str]] = {}
        self._due_at = 0.0
        self._duration_s = 0.0
        self._failures = RepeatedFailureLog(log)

    def start(self, running: Iterable[MeteredJob]) -> None:
        """Remove the monitoring groups that an earlier agent run left, except those of running jobs.

        Args:
            running: the running jobs, whose monitoring groups remain in use.
        """
        if self._files is None:
            return
        names = {PREFIX + job.name: job.name for job in running}
        for group in self._all_groups():
            name = group.rpartition("/")[2]
            if name in names:
                self._adopted.setdefault(names[name], {})[control_of(group)] = group
            elif name.startswith(PREFIX):
                self._remove(group)

    def read(self, now: float, jobs: Iterable[MeteredJob], reason: SampleReason) -> MonitoredDelta:
        """Return what the processor's monitoring groups counted for each job since the last reading.

        When a job or a record ends with this sample, the counts are always read. In other samples, the
        counts are read only if a reading is due. If the counts are not read, the result has
        `complete=False`.

        Args:
            now: time in seconds since boot.
            jobs: the jobs on the node.
            reason: why the sample is taken.
        """
        if self._files is None:
            return NOT_MONITORED
        for job in jobs:
            self._monitored(job).job = job
        periodic = reason is SampleReason.PERIODIC
        if not self._is_due(now, reason):
            return self._nothing_yet()
        started = self._clock()
        try:
            readings = self._read_groups()
        except DeviceError as error:
            self._failures.report("resctrl", f"not readable, memory energy is divided by CPU time: {error}")
            self._counts.forget()
            return NOT_MONITORED
        self._failures.clear("resctrl", "readable again")
        ended = self._clock()
        lag_s, age_s = ended - now, self._counts.age_s(now)
        if periodic and self._has_groups() and age_s < _MAX_INTERVAL_S and lag_s > _MAX_LAG_SHARE * age_s > 0:
            return self._nothing_yet()
        self._duration_s = lag_s
        self._due_at = now + min(max(_MIN_INTERVAL_S, lag_s / _MAX_READING_SHARE), _MAX_INTERVAL_S)
        return MonitoredDelta(self._uses(now, readings, ended - started))

    def _is_due(self, now: float, reason: SampleReason) -> bool:
        """Return whether the counts of the monitoring groups are read together with this sample.

        If the sample is taken for a query, the counts are read only if the last reading is old enough: its
        age must be long in comparison with the duration of a reading.
        """
        if not self._has_groups() or reason in (SampleReason.STEP, SampleReason.FINAL):
            return True
        if reason is SampleReason.QUERY:
            return self._counts.age_s(now) >= max(_MIN_QUERY_S, self._duration_s / _MAX_LAG_SHARE)
        return reason is SampleReason.PERIODIC and now >= self._due_at

    def _nothing_yet(self) -> MonitoredDelta:
        """Return an empty result for a sample in which the counts of the processor were not read.

        The result contains no use of any job and is marked as incomplete. The next reading will cover the
        counts of this interval.
        """
        assert self._files is not None
        return MonitoredDelta(dict.fromkeys(self._files.quantities, MonitoredUse(0, {})), complete=False)

    def pause(self) -> None:
        """Pause the readings. The next reading starts a new interval."""
        self._counts.forget()

    def _has_groups(self) -> bool:
        return any(state.groups for state in self._jobs.values())

    def add_processes(self, job: MeteredJob, now: float) -> None:
        """Move the known processes of a job into the job's monitoring group.

        Child processes that are created later start in the same group as their parent.

        Call this when a process of the job becomes known. `now` is the present time in seconds since boot.
        """
        if self._files is None:
            return
        state = self._monitored(job)
        state.job = job
        new = set(job.processes.pids) - state.pids
        if not new or now < state.retry_at:
            return
        is_first = not state.groups
        self._move(state, job_tasks.threads_of(self._root, new))
        state.pids |= new
        if is_first and job.start is None:
            state.is_unknown = True
        state.search_at, state.pause_s = now + _FIRST_SEARCH_S, _FIRST_SEARCH_S

    def forget(self, job: MeteredJob) -> None:
        """Remove the monitoring groups of a finished job."""
        state = self._jobs.pop(job.name, None)
        if state is not None:
            self._release(state)

    def dump(self) -> dict[str, Any]:
        """Return the last counts of all monitoring groups as a dict that can be stored as JSON.

        A monitoring group is a group of tasks whose use the processor counts (resctrl).
        """
        return {"counts": self._counts.dump()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore the last readings that an earlier agent run in the same boot stored with `dump`."""
        if self._files is not None:
            self._counts.load(data["counts"])

    def _monitored(self, job: MeteredJob) -> _MonitoredJob:
        state = self._jobs.get(job.name)
        if state is None:
            state = self._jobs[job.name] = _MonitoredJob(job, groups=self._adopted.pop(job.name, {}))
        return state

    def _read_groups(self) -> GroupReadings:
        """Read the counts of the resctrl control groups and the jobs' monitoring groups.

        If another program has removed a job's group, the counts of this group are discarded.

        Raises:
            DeviceError: the file system is no longer mounted.
        """
        assert self._files is not None
        readings: GroupReadings = {}
        controls = self._files.control_groups()
        for group in [*controls, *(g for s in self._jobs.values() for g in s.groups.values())]:
            try:
                readings[group] = self._files.read(group)
            except DeviceError as error:
                if group == ROOT_GROUP:
                    raise
                self._lose(group, error)
        return readings

    def _uses(self, now: float, readings: GroupReadings, duration_s: float) -> dict[str, MonitoredUse]:
        groups = {name: list(state.groups.values()) for name, state in self._jobs.items()}
        unknown = {name for name, state in self._jobs.items() if state.is_unknown or not _is_counted(state)}
        uses = self._counts.since_last(now, readings, groups, unknown, duration_s)
        for state in self._jobs.values():
            state.is_unknown = False
        return uses

    def search(self, now: float) -> None:
        """Search for tasks of jobs for which a search is due; move the tasks to the jobs' monitoring groups.

        The search is slow. Call this method after the readings of a periodic sample. `now` is the present
        time in seconds since boot.
        """
        if self._files is None:
            return
        due = [s for s in self._jobs.values() if now >= s.search_at and now >= s.retry_at]
        if not due:
            return
        for state in due:
            state.search_at = now + state.pause_s
            state.pause_s = min(2 * state.pause_s, _MAX_SEARCH_S)
        sources = {s.job.processes: self._source(s.job.processes.job_id) for s in due}
        tasks = job_tasks.job_tasks(self._root, sources)
        for state in due:
            missing = tasks.get(state.job.processes.job_id, set()) - self._grouped(state)
            if missing:
                self._move(state, missing)
                state.is_unknown = True

    def _grouped(self, state: _MonitoredJob) -> set[int]:
        assert self._files is not None
        tids: set[int] = set()
        for group in list(state.groups.values()):
            try:
                tids |= self._files.tasks(group)
            except DeviceError as error:
                self._lose(group, error)
        return tids

    def _move(self, state: _MonitoredJob, tids: set[int]) -> None:
        """Move tasks of a job to the job's monitoring groups.

        Each task is moved to the monitoring group in its own resctrl control group. If another program
        monitors one of the tasks, that task stays in the group of that program, and the job is not monitored.
        """
        assert self._files is not None
        state.has_tasks = True
        try:
            by_control, foreign = self._located(tids)
            if foreign:
                self._give_up(state, "others monitor its tasks")
                return
            for control, members in by_control.items():
                group = state.groups.get(control)
                if group is None:
                    group = state.groups[control] = self._files.create(control, PREFIX + state.job.name)
                self._files.add_tasks(group, members)
            self._failures.clear(_MONITORING, "every job is monitored again")
        except DeviceError as error:
            self._give_up(state, str(error))
        except OSError as error:
            exhausted = error.errno in _EXHAUSTED
            reason = "no monitoring id is free" if exhausted else error.strerror or str(error)
            self._give_up(state, reason)

    def _located(self, tids: set[int]) -> tuple[dict[str, set[int]], bool]:
        """Return in which resctrl control group each task is, and whether a program monitors a task.

        The first result maps each control group to its tasks. The second result is true if another program
        already monitors one of the tasks.

        Raises:
            DeviceError: the monitoring groups cannot be read.
        """
        assert self._files is not None
        by_control: dict[str, set[int]] = {}
        rest = set(tids)
        for control in self._files.control_groups():
            for group in self._files.monitoring_groups(control):
                if not group.rpartition("/")[2].startswith(PREFIX) and self._files.tasks(group) & tids:
                    return {}, True
            if control != ROOT_GROUP and (members := self._files.tasks(control) & rest):
                by_control[control] = members
                rest -= members
        return {**by_control, ROOT_GROUP: rest} if rest else by_control, False

    def _give_up(self, state: _MonitoredJob, reason: str) -> None:
        """Stop monitoring a job, and try again later."""
        self._failures.report(
            _MONITORING, f"not possible for every job, which is charged otherwise: {reason}"
        )
        self._release(state)
        state.retry_at = self._clock() + _RETRY_S

    def _release(self, state: _MonitoredJob) -> None:
        for group in state.groups.values():
            self._remove(group)
            self._counts.remove_group(group)
        state.groups, state.pids = {}, set()

    def _lose(self, group: str, error: DeviceError) -> None:
        """Discard a monitoring group that another program removed, and search for the job's tasks again."""
        log.info("monitoring group %s is gone: %s", group, error)
        self._counts.remove_group(group)
        for state in self._jobs.values():
            if group in state.groups.values():
                state.groups = {c: name for c, name in state.groups.items() if name != group}
                state.is_unknown = True
                state.search_at = 0.0

    def _remove(self, group: str) -> None:
        assert self._files is not None
        try:
            self._files.remove(group)
        except OSError as error:
            log.warning("monitoring group %s: not removed: %s", group, error.strerror or error)

    def _all_groups(self) -> list[str]:
        assert self._files is not None
        try:
            controls = self._files.control_groups()
            return [group for control in controls for group in self._files.monitoring_groups(control)]
        except DeviceError as error:
            log.warning("monitoring groups of earlier jobs are not removed: %s", error)
            return []


def _is_counted(state: _MonitoredJob) -> bool:
    """Return whether the counts of a job's monitoring groups include everything that the job uses.

    The result is also True for a job that has started but has no task yet, because a job without tasks
    uses nothing.
    """
    return bool(state.groups) if state.has_tasks else state.job.start is not None
