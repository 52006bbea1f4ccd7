"""CPU time of jobs without a cgroup.

The CPU time of a job is the sum over the job's slurmstepds and their descendants in /proc.

The sum is less exact than a cgroup. If a process ends between two readings, its CPU time is counted only if
its parent is in the tree and has called wait(2) for the process. Source: man 5 proc, /proc/PID/stat.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STEPD = re.compile(rb"slurmstepd: \[(\d+)\.")
_REAL_IDS = re.compile(rb"^Uid:\s*(\d+)\s.*\nGid:\s*(\d+)\s", re.MULTILINE)
_STAT_BYTES = _STATUS_BYTES = 1024
_TITLE_BYTES = 128
_CHILDREN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """Some fields of /proc/PID/stat. Times are in clock ticks.

    Attributes:
        parent: process id of the parent.
        ticks: CPU time of the process, user and system.
        waited_ticks: CPU time of ended children for which the process has called wait(2).
        started: start time after boot. It tells apart two processes that have used the same id.
    """

    parent: int
    ticks: int
    waited_ticks: int
    started: int


@dataclass(frozen=True, slots=True)
class JobCpuTime:
    """CPU time of a job's processes in clock ticks.

    Attributes:
        ticks: total up to now, which never decreases.
        living: CPU ticks by (process id, start time) of the processes that were alive at the last reading.
        waited: sum of `waited_ticks` over the processes in `living`.
    """

    ticks: int
    living: Mapping[tuple[int, int], int]
    waited: int

    @property
    def nanoseconds(self) -> int:
        """Total CPU time in nanoseconds."""
        return self.ticks * NS_PER_TICK


def parse_stat(content: bytes) -> ProcessStat:
    """Parse the content of /proc/PID/stat. The command name in it may contain blanks and brackets.

    Raises:
        ValueError: the content has an unknown form.
    """
    fields = content.rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError("too few fields")
    numbers = [int(word) for word in (fields[1], *fields[11:15], fields[19])]
    return ProcessStat(numbers[0], numbers[1] + numbers[2], numbers[3] + numbers[4], numbers[5])


def process_ids(root: Path) -> list[int]:
    """Return the ids of all processes of the node. `root` is the directory that contains /proc."""
    return [int(name) for name in os.listdir(root / "proc") if name.isdecimal()]


def read_processes(root: Path) -> dict[int, ProcessStat]:
    """Return all processes of the node by process id. Processes that end during the call are omitted."""
    processes: dict[int, ProcessStat] = {}
    for pid in process_ids(root):
        if content := read_head(os.path.join(root, f"proc/{pid}/stat"), _STAT_BYTES):
            try:
                processes[pid] = parse_stat(content)
            except ValueError:
                continue
    return processes


def find_slurmstepds(root: Path, pids: Iterable[int]) -> dict[int, list[int]]:
    """Return the slurmstepd processes among `pids`, by the job id in their process title.

    Any user can give a process the title of a slurmstepd, so only processes that slurmd's user started are
    accepted.
    """
    stepds: dict[int, list[int]] = {}
    for pid in pids:
        match = _STEPD.match(read_head(os.path.join(root, f"proc/{pid}/cmdline"), _TITLE_BYTES))
        if match and _is_of_slurmd_user(os.path.join(root, f"proc/{pid}/status")):
            stepds.setdefault(int(match[1]), []).append(pid)
    return stepds


def read_job_cpu_times(root: Path, jobs: Mapping[int, tuple[int, ...]]) -> dict[int, JobCpuTime | None]:
    """Return the CPU time of each job's processes.

    Args:
        root: directory that contains /proc.
        jobs: process ids known to belong to each job. The job's slurmstepds are found even if they are not
            listed.

    Returns:
        CPU time by job id; None for a job without a living process.
    """
    processes = read_processes(root)
    trees = _trees(root, jobs, processes)
    return {job_id: _sum(processes, tree) for job_id, tree in trees.items()}


def job_pids(root: Path, jobs: Mapping[int, tuple[int, ...]]) -> dict[int, set[int]]:
    """Return the processes of jobs by job id.

    Args:
        root: directory that contains /proc.
        jobs: process ids known to belong to each job. The job's slurmstepds are found even if they are not
            listed.
    """
    return _trees(root, jobs, read_processes(root))


def _trees(
    root: Path, jobs: Mapping[int, tuple[int, ...]], processes: Mapping[int, ProcessStat]
) -> dict[int, set[int]]:
    stepds = find_slurmstepds(root, processes)
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    return {
        job_id: _descendants(children, [*pids, *stepds.get(job_id, [])], processes)
        for job_id, pids in jobs.items()
    }


def read_tree_cpu_time(root: Path, pid: int) -> JobCpuTime | None:
    """Return the CPU time of a process and its descendants; None if the process has ended.

    Only the processes of this tree are read, through /proc/PID/task/TID/children.

    Args:
        root: directory that contains /proc.
        pid: process id.
    """
    processes: dict[int, ProcessStat] = {}
    todo = [pid]
    while todo:
        one = todo.pop()
        path = os.path.join(root, f"proc/{one}/stat")
        if one in processes or not (content := read_head(path, _STAT_BYTES)):
            continue
        try:
            processes[one] = parse_stat(content)
        except ValueError:
            continue
        todo += _children(root, one)
    return _sum(processes, set(processes)) if pid in processes else None


def _children(root: Path, pid: int) -> list[int]:
    words: list[bytes] = []
    for path in (root / "proc" / str(pid) / "task").glob("*/children"):
        words += read_head(str(path), _CHILDREN_BYTES).split()
    return [int(word) for word in words if word.isdigit()]


def _descendants(
    children: Mapping[int, list[int]], roots: Iterable[int], processes: Mapping[int, ProcessStat]
) -> set[int]:
    descendants: set[int] = set()
    todo = [pid for pid in roots if pid in processes]
    while todo:
        pid = todo.pop()
        if pid not in descendants:
            descendants.add(pid)
            todo += children.get(pid, [])
    return descendants


def _sum(processes: Mapping[int, ProcessStat], pids: set[int]) -> JobCpuTime | None:
    if not pids:
        return None
    living = {(pid, processes[pid].started): processes[pid].ticks for pid in pids}
    waited = sum(processes[pid].waited_ticks for pid in pids)
    return JobCpuTime(sum(living.values()) + waited, living, waited)


def accumulate(earlier: JobCpuTime | None, later: JobCpuTime | None) -> JobCpuTime | None:
    """Return a job's CPU time after a later reading, so that the total never decreases.

    A reading consists of the CPU time of each living process, and of `waited`: the CPU time of ended
    processes for which their parent has called wait(2). When a process has ended, the part of its time
    that an earlier reading counted is subtracted from `waited`, so that no time counts twice. If the
    parent has not called wait(2), only the time in the earlier reading counts.

    Args:
        earlier: accumulated total; None before the first reading.
        later: new reading; None if no process of the job is alive.

    Returns:
        The accumulated total; None if both are None.
    """
    if earlier is None or later is None:
        return later or earlier
    grown = sum(ticks - earlier.living.get(key, 0) for key, ticks in later.living.items())
    vanished = sum(ticks for key, ticks in earlier.living.items() if key not in later.living)
    ended = max(0, later.waited - earlier.waited - vanished)
    return JobCpuTime(earlier.ticks + max(0, grown) + ended, later.living, later.waited)


def _is_of_slurmd_user(path: str) -> bool:
    """Return whether a process was started by root, which is the user of slurmd.

    The user that runs this agent counts as root, too. This is needed in a test cluster without root.

    The real user id and the real group id of the process are checked. The name of a process is no proof:
    any user can start a set-uid program with any title. Such a program runs as root, but its real uid is
    the uid of its caller. Programs such as sudo change the real uid, too, but keep the real gid.

    Args:
        path: /proc/PID/status of the process.
    """
    match = _REAL_IDS.search(read_head(path, _STATUS_BYTES))
    return match is not None and int(match[1]) in (0, os.getuid()) and int(match[2]) in (0, os.getgid())


def read_head(path: str, size: int) -> bytes:
    """Return the first `size` bytes of a file in /proc.

    The result is empty if the process has ended or the file is unreadable.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, size)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
