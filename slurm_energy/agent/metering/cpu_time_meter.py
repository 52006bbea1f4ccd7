"""CPU time that the jobs and the node use between two samples.

Every sample reads the control groups (cgroups) whose files are already open, which is fast. Two operations
are slow: the search for a job's control group, and the sum over the CPU times of the job's processes. They
are done only in samples for which no hook waits, and in the last sample of a job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from slurm_energy.agent.metering.attribution import rest_of_node
from slurm_energy.agent.metering.occupancy import CpuTimeDelta
from slurm_energy.devices.cpu.cpu_time import (
    PROCESS_TREE,
    JobCpuTimeReader,
    JobProcesses,
    NodeBusyTimeReader,
)
from slurm_energy.devices.driver import DeviceError
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)

_TREE_PAUSE_S = 0.9
"""All processes of the node are scanned at most about once a second."""
_SEARCH_PAUSE_S, _MAX_PAUSE_S = 0.9, 15.0
"""A job without any known process, such as an allocation without steps, is searched at growing intervals."""
_MAX_DEBT_NS = 20_000_000
"""/proc/stat counts in ticks of 10 ms per CPU, so it may lag the control groups by two ticks."""


class SampleReason(Enum):
    """Reason for which a sample is taken.

    The reason determines which counters are read and how long this may take.
    """

    PERIODIC = auto()
    """The timer requests the sample. Nothing waits for it."""
    HOOK = auto()
    """A hook waits, and another sample will follow."""
    STEP = auto()
    """A hook waits, and a step's record begins or ends here."""
    QUERY = auto()
    """A client waits; only counters that can have a new value are read."""
    FINAL = auto()
    """A hook waits, and a job's time ends here."""


SAMPLE_RANK = {SampleReason.HOOK: 1, SampleReason.STEP: 2, SampleReason.FINAL: 3}
"""Completeness of the samples that read all counters. A sample also serves every reason of lower rank."""


@dataclass(frozen=True, slots=True)
class MeteredJob:
    """A job whose CPU time is measured.

    Attributes:
        name: unique name of the job.
        start: time in seconds since boot at which the job started. The job had used no CPU time then. None if
            the agent did not observe the start.
        processes: identifies the job's processes.
    """

    name: str
    start: float | None
    processes: JobProcesses


class CpuTimeMeter:
    """Meter that reads CPU time, and keeps the last reading of every job and of the node.

    Args:
        root: directory that contains `sys` and `proc`.
        node: Slurm's name of this node.
        cpus: number of logical CPUs of the node.
    """

    def __init__(self, root: Path, node: str, cpus: int) -> None:
        self._times = JobCpuTimeReader(root, node)
        self._busy_time = NodeBusyTimeReader(root)
        self._max_debt_ns = cpus * _MAX_DEBT_NS
        self._last: dict[str, tuple[int, float]] = {}
        self._busy_ns: int | None = None
        self._time: float | None = None
        self._debt_ns = 0
        self._due: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}
        self._failures = RepeatedFailureLog(log)

    def read(
        self, now: float, jobs: Iterable[MeteredJob], reason: SampleReason = SampleReason.PERIODIC
    ) -> CpuTimeDelta:
        """Return the CPU time of the node and its jobs since the last complete reading.

        Args:
            now: time in seconds since boot.
            jobs: the jobs on the node.
            reason: why the sample is taken. If reading takes longer than this reason permits, the result has
                `complete=False`, and a later sample reads the CPU time of this interval.
        """
        requested = list(jobs)
        if reason in (SampleReason.HOOK, SampleReason.STEP, SampleReason.QUERY) and any(
            self._can_wait(job) for job in requested
        ):
            return CpuTimeDelta(complete=False)
        searched = [job for job in requested if self._must_search(job, now, reason)]
        if any(self._is_tree(job) and job not in searched for job in requested):
            return CpuTimeDelta(complete=False)  # a later sample scans their processes
        times: dict[int, int | None] = dict(self._times.read_known_groups(job.processes for job in requested))
        if searched:
            times |= self._times.read(job.processes for job in searched)
            self._schedule_search(searched, times, now)
        return self._since_last(now, requested, times)

    def find_processes(self, job: MeteredJob) -> None:
        """Search for the control group (cgroup) of a job immediately.

        Call this when one of the job's processes becomes known.
        """
        if not self._times.find_group(job.processes):
            self._due.pop(job.name, None)
            self._pause_s.pop(job.name, None)

    def source(self, job_id: int) -> str | None:
        """Return the source of a job's CPU time (a cgroup or processes), see `JobCpuTimeReader.source`."""
        return self._times.source(job_id)

    def pause(self) -> None:
        """Pause the measurement of the node's CPU time.

        The next reading starts a new interval.
        """
        self._busy_ns = None

    def rename(self, node: str) -> None:
        """Change Slurm's name of this node to `node`."""
        self._times.node = node

    def forget(self, job: MeteredJob) -> None:
        """Delete the readings of a finished job."""
        for readings in (self._last, self._due, self._pause_s):
            readings.pop(job.name, None)
        self._times.forget(job.processes.job_id)

    def close(self) -> None:
        """Close all file descriptors."""
        self._times.close()
        self._busy_time.close()

    def dump(self) -> dict[str, Any]:
        """Return the last readings as a dict that JSON can hold."""
        return {"time": self._time, "busy_ns": self._busy_ns, "debt_ns": self._debt_ns, "jobs": self._last}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore the last readings that an earlier agent run in the same boot stored with `dump`."""
        self._time, self._busy_ns, self._debt_ns = data["time"], data["busy_ns"], data["debt_ns"]
        self._last = {job: (int(time_ns), float(when)) for job, (time_ns, when) in data["jobs"].items()}

    def _is_tree(self, job: MeteredJob) -> bool:
        return self._times.source(job.processes.job_id) == PROCESS_TREE

    def _can_wait(self, job: MeteredJob) -> bool:
        """Return whether the reading of a job's CPU time can be left to a later sample of this interval.

        A later sample can read the CPU time faster or more exactly.
        """
        return self._is_tree(job) or not (self._times.source(job.processes.job_id) or job.name in self._due)

    def _must_search(self, job: MeteredJob, now: float, reason: SampleReason) -> bool:
        if reason is SampleReason.PERIODIC:
            has_group = self._times.source(job.processes.job_id) not in (None, PROCESS_TREE)
            return not has_group and now >= self._due.get(job.name, now)
        return self._is_tree(job) and reason is SampleReason.FINAL

    def _schedule_search(
        self, searched: Iterable[MeteredJob], times: Mapping[int, int | None], now: float
    ) -> None:
        for job in searched:
            if times.get(job.processes.job_id) is not None:
                self._pause_s.pop(job.name, None)
                self._due[job.name] = now + _TREE_PAUSE_S
                continue
            pause_s = self._pause_s.get(job.name, _SEARCH_PAUSE_S)
            self._due[job.name] = now + pause_s
            self._pause_s[job.name] = min(2 * pause_s, _MAX_PAUSE_S)

    def _since_last(
        self, now: float, jobs: list[MeteredJob], times: Mapping[int, int | None]
    ) -> CpuTimeDelta:
        used_ns: dict[str, int | None] = {}
        for job in jobs:
            time_ns = times.get(job.processes.job_id)
            used_ns[job.name] = None if time_ns is None else self._job_delta_ns(job, time_ns, now)
        busy_ns = self._busy_delta_ns(sum(used for used in used_ns.values() if used is not None))
        self._time = now
        return CpuTimeDelta(busy_ns, used_ns)

    def _job_delta_ns(self, job: MeteredJob, time_ns: int, now: float) -> int | None:
        """Return the CPU time in ns that a job has used since the last complete reading.

        A complete reading covers all jobs on the node. None means that the last complete reading did not
        include this job although the job was already on the node. `time_ns` is the job's total CPU time in
        nanoseconds. `now` is the time of this reading in seconds since boot.
        """
        last = self._last.get(job.name)
        self._last[job.name] = time_ns, now
        if last is None and job.start is None:
            return None
        last_ns, since = last or (0, job.start or 0.0)
        return None if self._time is not None and since < self._time else max(0, time_ns - last_ns)

    def _busy_delta_ns(self, jobs_ns: int) -> int | None:
        """Return the CPU time in nanoseconds that all processes have used since the last reading.

        Return None if this CPU time is unknown.

        The result is never less than `jobs_ns`, the CPU time of the jobs in the same interval.
        """
        before = self._busy_ns
        try:
            self._busy_ns = self._busy_time.read_ns()
        except DeviceError as error:
            self._failures.report("CPU time of the node", f"not known: {error}")
            self._busy_ns = None
        if before is None or self._busy_ns is None:
            return None
        rest_ns, debt_ns = rest_of_node(max(0, self._busy_ns - before), jobs_ns, self._debt_ns)
        self._debt_ns = min(debt_ns, self._max_debt_ns)
        return jobs_ns + rest_ns
