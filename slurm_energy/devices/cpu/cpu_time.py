"""CPU time of each job on this node.

The CPU time is read from the job's cgroup, or else from the job's processes.

Cgroups that Slurm creates (src/plugins/cgroup; cgroup.conf(5), cgroup_v2.html): version 1 has
cpuacct/slurm[_NODE]/uid_UID/job_JOB/cpuacct.usage, in nanoseconds. Version 2 has
system.slice/[NODE_]slurmstepd.scope/job_JOB/cpu.stat, in microseconds. From Slurm 26.05 on, the directory is
named by the job's SLUID unless CgroupJobIdPaths=yes. CgroupSlice may move the scope. Where Slurm uses no
cgroups, a cgroup named job_JOB is used if it contains a known process of the job. As a last resort the CPU
times of the process tree are added up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.devices.cpu import process_tree
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.sysfs import error_reason, read_optional

CGROUP_MOUNT = "sys/fs/cgroup"
_V1_CONTROLLERS = ("cpuacct", "cpu,cpuacct")
_STAT_BYTES = 1024
_NS_PER_US = 1000
SCOPE = "slurmstepd.scope"
_NO_JOB = "system"  # directory of the process that keeps the scope alive
PROCESS_TREE = "process tree"


@dataclass(frozen=True, slots=True)
class JobProcesses:
    """A job on this node and the processes that are known to belong to it.

    Attributes:
        job_id: Slurm's numeric job id; each component of a heterogeneous job and each array task has its own.
        sluid: Slurm's unique name of the job, from release 25.11; None if unknown.
        pids: processes known to belong to the job, for example its slurmstepds.
    """

    job_id: int
    sluid: str | None = None
    pids: tuple[int, ...] = ()

    @property
    def directory_names(self) -> frozenset[str]:
        """Names that the directory of the job's cgroup may have: `job_JOB` and the SLUID."""
        names = {f"job_{self.job_id}"}
        return frozenset(names | {self.sluid} if self.sluid else names)


@dataclass(slots=True)
class _Group:
    """Open file that shows the CPU time of one cgroup of a job.

    The object also stores the highest CPU time that was read from the file so far.
    """

    path: str
    descriptor: int
    highest_ns: int = 0


@dataclass(slots=True)
class _GroupParents:
    """Parent directories of the cgroups that Slurm creates for jobs, listed once per reading.

    If the cgroup of a job is unknown, each reading searches for it in these directories.
    """

    root: Path
    node: str
    _listed: list[tuple[str, str]] | None = None

    def listed(self) -> list[tuple[str, str]]:
        """Return the parent directories of the jobs' cgroups, each with the name of the CPU time file.

        The CPU time file is in each child directory.
        """
        if self._listed is None:
            base = os.path.join(self.root, CGROUP_MOUNT)
            names = (f"slurm_{self.node}", "slurm")
            tops = [f"{base}/{controller}/{name}" for controller in _V1_CONTROLLERS for name in names]
            users = [user for top in tops for user in entries(top, prefix="uid_")]
            scopes = [one for mount in (base, f"{base}/unified") for one in slurm_scopes(mount, self.node)]
            self._listed = [(user, "cpuacct.usage") for user in users]
            self._listed += [(scope, "cpu.stat") for scope in scopes]
        return self._listed


@dataclass(slots=True)
class JobCpuTimeReader:
    """Reader of the CPU time that jobs have used. It keeps one open file per job.

    Attributes:
        root: directory that contains /sys and /proc.
        node: Slurm's name of this node.
    """

    root: Path
    node: str
    _groups: dict[int, _Group] = field(default_factory=dict)
    _trees: dict[int, process_tree.JobCpuTime] = field(default_factory=dict)

    def read(self, jobs: Iterable[JobProcesses]) -> dict[int, int | None]:
        """Return the CPU time of each job in nanoseconds, by job id.

        The time is None for a job that has neither a cgroup nor a process. The CPU time of a job never
        decreases. After the job's cgroup has been removed, the last value is returned.
        """
        result: dict[int, int | None] = {}
        ungrouped: list[JobProcesses] = []
        parents = _GroupParents(self.root, self.node)
        for job in jobs:
            time_ns = self._from_group(job, parents)
            result[job.job_id] = time_ns
            if time_ns is None:
                ungrouped.append(job)
        if ungrouped:
            result.update(self._from_processes(ungrouped))
        return result

    def read_known_groups(self, jobs: Iterable[JobProcesses]) -> dict[int, int]:
        """Return the CPU time of jobs whose cgroup was found earlier, in nanoseconds by job id.

        This method is fast, because it does not search for the groups of other jobs.
        """
        parents = _GroupParents(self.root, self.node)
        times = {job.job_id: self._from_group(job, parents) for job in jobs if job.job_id in self._groups}
        return {job_id: time_ns for job_id, time_ns in times.items() if time_ns is not None}

    def find_group(self, job: JobProcesses) -> bool:
        """Search for a job's cgroup through its known processes.

        This method is faster than `read`, because `read` searches all groups.

        Returns:
            Whether the cgroup of the job is known now.
        """
        if job.job_id in self._groups:
            return True
        names = job.directory_names
        paths = (path for pid in job.pids if (path := self._group_of_process(pid, names)) is not None)
        return any(self._opened(job, path) is not None for path in paths)

    def source(self, job_id: int) -> str | None:
        """Return the source of a job's CPU time: the path of its cgroup's file, or `process tree`.

        Return None if the job's CPU time is unknown.
        """
        if job_id in self._groups:
            return self._groups[job_id].path
        return PROCESS_TREE if job_id in self._trees else None

    def forget(self, job_id: int) -> None:
        """Close the file of a job that has ended and delete the data about the job."""
        self._trees.pop(job_id, None)
        group = self._groups.pop(job_id, None)
        if group is not None and group.descriptor >= 0:
            os.close(group.descriptor)

    def close(self) -> None:
        """Close the files of all jobs and delete the data about them."""
        for job_id in list(self._groups):
            self.forget(job_id)
        self._trees.clear()

    def _from_group(self, job: JobProcesses, parents: _GroupParents) -> int | None:
        group = self._groups.get(job.job_id)
        if group is None:
            path = self._find(job, parents)
            group = self._opened(job, path) if path else None
            if group is None:
                return None
        try:
            time_ns = _nanoseconds(os.pread(group.descriptor, _STAT_BYTES, 0))
        except (OSError, ValueError):
            # The group is gone: the job has ended, or a requeued job will return in a new group.
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

    def _find(self, job: JobProcesses, parents: _GroupParents) -> str | None:
        """Return the file with a job's CPU time, found through its processes or Slurm's paths.

        Return None if no file with the job's CPU time exists.
        """
        names = job.directory_names
        for pid in job.pids:
            if (path := self._group_of_process(pid, names)) is not None:
                return path
        paths = (f"{folder}/{name}/{file}" for folder, file in parents.listed() for name in names)
        return next((path for path in paths if os.path.exists(path)), None)

    def _group_of_process(self, pid: int, names: frozenset[str]) -> str | None:
        """Return the file with the CPU time of the job's cgroup, found through a process of the job.

        Return None if the process belongs to no cgroup of the job.

        Args:
            pid: process of the job.
            names: names that the directory of the group may have.
        """
        text = read_optional(os.path.join(self.root, f"proc/{pid}/cgroup")) or ""
        for line in text.splitlines():
            _, _, rest = line.partition(":")
            controllers, _, cgroup_path = rest.partition(":")
            directory = job_part(cgroup_path, names)
            if directory is None:
                continue
            for folder, file in _mounts(controllers):
                path = os.path.join(self.root, CGROUP_MOUNT, folder, directory, file)
                if os.path.exists(path):
                    return path
        return None

    def _from_processes(self, jobs: list[JobProcesses]) -> dict[int, int | None]:
        times = process_tree.read_job_cpu_times(self.root, {job.job_id: job.pids for job in jobs})
        result: dict[int, int | None] = {}
        for job_id, time in times.items():
            total = process_tree.accumulate(self._trees.get(job_id), time)
            if total is not None:
                self._trees[job_id] = total
            result[job_id] = total.nanoseconds if total else None
        return result


class NodeBusyTimeReader:
    """Reader of the node's busy CPU time since boot, summed over all CPUs.

    /proc/stat stays open. Only the first line of the file, the sum over all CPUs, is used. The other lines
    are about single CPUs. After a failed reading the next reading opens the file again.

    Args:
        root: directory that contains /proc.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "proc/stat"
        self._descriptor: int | None = None

    def read_ns(self) -> int:
        """Return the busy time in nanoseconds.

        Raises:
            DeviceError: /proc/stat is unreadable or has an unknown form.
        """
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            words = os.pread(self._descriptor, _STAT_BYTES, 0).partition(b"\n")[0].split()
        except OSError as error:
            self.close()
            raise DeviceError(str(self._path), error_reason(error)) from None
        try:
            user, nice, system, _idle, _iowait, irq, softirq = (int(word) for word in words[1:8])
        except ValueError:
            self.close()
            raise DeviceError(str(self._path), "has an unknown form") from None
        return (user + nice + system + irq + softirq) * process_tree.NS_PER_TICK

    def close(self) -> None:
        """Close the file; the next reading opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def job_part(cgroup_path: str, names: frozenset[str]) -> str | None:
    """Return the path of a cgroup up to the job's directory, without a leading slash.

    Return None if no job's directory is found. The job's directory has one of `names`, or it is a child of
    slurmstepd's scope and is named by the SLUID.

    Args:
        cgroup_path: path of a group from /proc/PID/cgroup.
        names: names that the job's directory may have.
    """
    parts = cgroup_path.strip("/").split("/")
    for index, part in enumerate(parts):
        above = parts[index - 1] if index else ""
        if part in names or (above.endswith(SCOPE) and part != _NO_JOB):
            return "/".join(parts[: index + 1])
    return None


def _mounts(controllers: str) -> list[tuple[str, str]]:
    """Return folder and CPU time file of each cgroup hierarchy with CPU time.

    The folder is below /sys/fs/cgroup. The file is given by its name.

    Args:
        controllers: list of controllers in a line of /proc/PID/cgroup; empty for cgroup v2.
    """
    if not controllers:
        return [("", "cpu.stat"), ("unified", "cpu.stat")]
    return [(controllers, "cpuacct.usage")] if "cpuacct" in controllers.split(",") else []


def entries(folder: str, *, prefix: str = "", suffix: str = "") -> list[str]:
    """Return the paths of a folder's entries with a given prefix and suffix.

    The result is empty if the folder is unreadable.

    The function must be fast, because it is called at every sample to find the cgroups of jobs. Therefore
    it uses neither pathlib nor glob. pathlib would keep the name of every job in memory. glob looks up
    each component of a path separately.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [f"{folder}/{name}" for name in names if name.startswith(prefix) and name.endswith(suffix)]


def slurm_scopes(mount: str, node: str) -> list[str]:
    """Return the possible directories of slurmstepd's scopes in cgroup v2, this node's own scope first.

    Args:
        mount: directory at which the cgroup hierarchy is mounted.
        node: Slurm's name of this node.
    """
    slices = entries(mount, suffix=".slice")
    return [f"{path}/{scope}" for scope in (f"{node}_{SCOPE}", SCOPE) for path in slices]


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _nanoseconds(content: bytes) -> int:
    """Parse a cpuacct.usage or cpu.stat file into nanoseconds of CPU time.

    Raises:
        ValueError: the content has neither form.
    """
    for line in content.splitlines():
        words = line.split()
        if len(words) == 1:
            return int(words[0])
        if words[0] == b"usage_usec":
            return int(words[1]) * _NS_PER_US
    raise ValueError("no CPU time")
