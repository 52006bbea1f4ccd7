"""CPU time of each job on this node, from the control groups that Slurm makes, else from its processes.

Layouts (Slurm, src/plugins/cgroup; cgroup.conf(5), cgroup_v2.html):
v1  cpuacct/slurm[_NODE]/uid_UID/job_JOB/cpuacct.usage, nanoseconds
v2  system.slice/[NODE_]slurmstepd.scope/job_JOB/cpu.stat, microseconds; from Slurm 26.05 on the directory
    has the job's SLUID for a name unless CgroupJobIdPaths=yes; CgroupSlice may move the scope.
Where Slurm uses no control groups, a group named job_JOB that holds a known process of the job is taken,
and as a last resort the process tree is added up.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.devices.cpu import process_tree
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.sysfs import read_optional, read_text

_CGROUP = "sys/fs/cgroup"
_V1_CONTROLLERS = ("cpuacct", "cpu,cpuacct")
_STAT_BYTES = 1024
_NS_PER_US = 1000
_SCOPE = "slurmstepd.scope"
_NO_JOB = "system"  # holds the process that keeps the scope alive
PROCESS_TREE = "process tree"


@dataclass(frozen=True, slots=True)
class JobProcesses:
    """What is known of a job.

    Attributes:
        job_id: Slurm's number (of the component or array task).
        sluid: Slurm's unique name of the job, from release 25.11 on; None if not known.
        pids: processes known to belong to the job, e.g. of its slurmstepds.
    """

    job_id: int
    sluid: str | None = None
    pids: tuple[int, ...] = ()

    @property
    def directory_names(self) -> frozenset[str]:
        """Names that the job's control group may have."""
        names = {f"job_{self.job_id}"}
        return frozenset(names | {self.sluid} if self.sluid else names)


@dataclass(slots=True)
class _Group:
    """The kept-open file of a job's control group."""

    path: str
    descriptor: int
    highest_ns: int = 0


@dataclass(slots=True)
class JobCpuTimeReader:
    """Reads the CPU time of jobs; keeps one descriptor per job.

    Attributes:
        root: where /sys and /proc are found.
        node: Slurm's name of this node.
    """

    root: Path
    node: str
    _groups: dict[int, _Group] = field(default_factory=dict)
    _trees: dict[int, process_tree.JobCpuTime] = field(default_factory=dict)

    def read(self, jobs: Iterable[JobProcesses]) -> dict[int, int | None]:
        """Return nanoseconds of CPU time by job id; None for a job of which nothing is found.

        A job's figure never goes down; after its group is gone the last one stays.
        """
        result: dict[int, int | None] = {}
        rest: list[JobProcesses] = []
        for job in jobs:
            time_ns = self._from_group(job)
            result[job.job_id] = time_ns
            if time_ns is None:
                rest.append(job)
        if rest:
            result.update(self._from_processes(rest))
        return result

    def read_open(self, jobs: Iterable[JobProcesses]) -> dict[int, int]:
        """Return nanoseconds of CPU time by job id, of jobs whose group is known; searches nothing."""
        found = {job.job_id: self._from_group(job) for job in jobs if job.job_id in self._groups}
        return {job_id: time_ns for job_id, time_ns in found.items() if time_ns is not None}

    def find(self, job: JobProcesses) -> bool:
        """Look for a job's group by its known processes, which is quick; return whether it is known now."""
        if job.job_id in self._groups:
            return True
        names = job.directory_names
        paths = (path for pid in job.pids if (path := self._group_of_process(pid, names)) is not None)
        return any(self._opened(job, path) is not None for path in paths)

    def source(self, job_id: int) -> str | None:
        """Return where a job's figure comes from: the group's file or `process tree`; None if unknown."""
        if job_id in self._groups:
            return self._groups[job_id].path
        return PROCESS_TREE if job_id in self._trees else None

    def forget(self, job_id: int) -> None:
        """Give back what is kept for a job that has ended."""
        self._trees.pop(job_id, None)
        group = self._groups.pop(job_id, None)
        if group is not None and group.descriptor >= 0:
            os.close(group.descriptor)

    def close(self) -> None:
        """Give everything back."""
        for job_id in list(self._groups):
            self.forget(job_id)
        self._trees.clear()

    def _from_group(self, job: JobProcesses) -> int | None:
        group = self._groups.get(job.job_id)
        if group is None:
            path = self._find(job)
            group = self._opened(job, path) if path else None
            if group is None:
                return None
        try:
            time_ns = _nanoseconds(os.pread(group.descriptor, _STAT_BYTES, 0))
        except (OSError, ValueError):
            # The group is gone: the job has ended, or a requeued job will come back in a new one.
            return self._reopened(group)
        group.highest_ns = max(group.highest_ns, time_ns)
        return group.highest_ns

    def _opened(self, job: JobProcesses, path: str) -> _Group | None:
        descriptor = _open(path)
        if descriptor < 0:
            return None
        group = self._groups[job.job_id] = _Group(path, descriptor)
        return group

    def _reopened(self, group: _Group) -> int:
        descriptor = _open(group.path)
        if descriptor >= 0:
            os.close(group.descriptor)
            group.descriptor = descriptor
        return group.highest_ns

    def _find(self, job: JobProcesses) -> str | None:
        """Return the file with a job's CPU time."""
        names = job.directory_names
        for pid in job.pids:
            if (path := self._group_of_process(pid, names)) is not None:
                return path
        return next(iter(self._slurm_groups(names)), None)

    def _slurm_groups(self, names: frozenset[str]) -> Iterable[str]:
        base = os.path.join(self.root, _CGROUP)
        for controller in _V1_CONTROLLERS:
            for top in (f"slurm_{self.node}", "slurm"):
                for name in names:
                    yield from _matches(f"{base}/{controller}/{top}", f"uid_*/{name}/cpuacct.usage")
        for mount in (base, f"{base}/unified"):
            for scope in (f"{self.node}_{_SCOPE}", _SCOPE):
                for name in names:
                    yield from _matches(mount, f"*.slice/{scope}/{name}/cpu.stat")

    def _group_of_process(self, pid: int, names: frozenset[str]) -> str | None:
        """Return the file of the group around a process that is the job's."""
        text = read_optional(os.path.join(self.root, f"proc/{pid}/cgroup")) or ""
        for line in text.splitlines():
            _, _, rest = line.partition(":")
            controllers, _, place = rest.partition(":")
            directory = _job_part(place, names)
            if directory is None:
                continue
            for folder, file in _mounts(controllers):
                path = os.path.join(self.root, _CGROUP, folder, directory, file)
                if os.path.exists(path):
                    return path
        return None

    def _from_processes(self, jobs: list[JobProcesses]) -> dict[int, int | None]:
        found = process_tree.read_job_cpu_times(self.root, {job.job_id: job.pids for job in jobs})
        result: dict[int, int | None] = {}
        for job_id, time in found.items():
            total = process_tree.accumulate(self._trees.get(job_id), time)
            if total is not None:
                self._trees[job_id] = total
            result[job_id] = total.nanoseconds if total else None
        return result


def node_busy_ns(root: Path) -> int:
    """Return nanoseconds in which the node's CPUs did something, all processes together.

    Raises:
        DeviceError: /proc/stat is not readable or not of the known form.
    """
    path = root / "proc/stat"
    first = read_text(path).partition("\n")[0].split()
    try:
        user, nice, system, _idle, _iowait, irq, softirq = (int(word) for word in first[1:8])
    except ValueError:
        raise DeviceError(str(path), "not of the known form") from None
    return (user + nice + system + irq + softirq) * process_tree.NS_PER_TICK


def _job_part(place: str, names: frozenset[str]) -> str | None:
    """Return a group's path up to the job's directory, without the leading slash.

    That is the component with one of the job's names, or the one below slurmstepd's scope, whose name is
    the SLUID.
    """
    parts = place.strip("/").split("/")
    for index, part in enumerate(parts):
        above = parts[index - 1] if index else ""
        if part in names or (above.endswith(_SCOPE) and part != _NO_JOB):
            return "/".join(parts[: index + 1])
    return None


def _mounts(controllers: str) -> list[tuple[str, str]]:
    """Return (folder below /sys/fs/cgroup, file) where a hierarchy shows CPU time."""
    if not controllers:
        return [("", "cpu.stat"), ("unified", "cpu.stat")]
    return [(controllers, "cpuacct.usage")] if "cpuacct" in controllers.split(",") else []


def _matches(folder: str, pattern: str) -> Iterable[str]:
    """Find files below a folder; not by pathlib, which keeps the name of every job."""
    return (os.path.join(folder, name) for name in glob.iglob(pattern, root_dir=folder))


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _nanoseconds(content: bytes) -> int:
    """Return the CPU time in a cpuacct.usage or cpu.stat file.

    Raises:
        ValueError: neither.
    """
    for line in content.splitlines():
        words = line.split()
        if len(words) == 1:
            return int(words[0])
        if words[0] == b"usage_usec":
            return int(words[1]) * _NS_PER_US
    raise ValueError("no CPU time")
