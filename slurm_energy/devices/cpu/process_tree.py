"""CPU time of jobs from /proc where nobody keeps it per job: slurmstepds and everything below them.

Less exact than a control group: what a process used that ended between two readings counts only if its
parent is in the tree and has waited for it. Source: man 5 proc, /proc/PID/stat.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STEPD = re.compile(rb"slurmstepd: \[(\d+)\.")
_STAT_BYTES = 1024
_TITLE_BYTES = 128


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A line of /proc/PID/stat.

    Attributes:
        parent: parent's process id.
        ticks: own time, user and system.
        waited_ticks: time of children that ended and were waited for.
        started: ticks after boot; tells processes of the same id apart.
    """

    parent: int
    ticks: int
    waited_ticks: int
    started: int


@dataclass(frozen=True, slots=True)
class JobCpuTime:
    """CPU time of a job's processes, in ticks.

    Attributes:
        ticks: sum so far, which never goes down.
        living: own ticks by (process id, start) of the processes alive at the last reading.
        waited: sum of what those have waited for.
    """

    ticks: int
    living: Mapping[tuple[int, int], int]
    waited: int

    @property
    def nanoseconds(self) -> int:
        """The sum so far in nanoseconds."""
        return self.ticks * NS_PER_TICK


def parse_stat(content: bytes) -> ProcessStat:
    """Read /proc/PID/stat. The command's name may hold blanks and brackets.

    Raises:
        ValueError: not of the known form.
    """
    fields = content.rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError("too few fields")
    numbers = [int(word) for word in (fields[1], *fields[11:15], fields[19])]
    return ProcessStat(numbers[0], numbers[1] + numbers[2], numbers[3] + numbers[4], numbers[5])


def read_processes(root: Path) -> dict[int, ProcessStat]:
    """Return all processes of the node."""
    found: dict[int, ProcessStat] = {}
    for name in os.listdir(root / "proc"):
        if name.isdecimal() and (content := _head(os.path.join(root, f"proc/{name}/stat"), _STAT_BYTES)):
            try:
                found[int(name)] = parse_stat(content)
            except ValueError:
                continue
    return found


def find_slurmstepds(root: Path, pids: Iterable[int]) -> dict[int, list[int]]:
    """Return the slurmstepd processes among `pids` by job id; they carry it in their title.

    Anybody can give a process that title, so it counts only for those of slurmd's user.
    """
    found: dict[int, list[int]] = {}
    for pid in pids:
        match = _STEPD.match(_head(os.path.join(root, f"proc/{pid}/cmdline"), _TITLE_BYTES))
        if match and _is_slurmd_s(root / f"proc/{pid}"):
            found.setdefault(int(match[1]), []).append(pid)
    return found


def read_job_cpu_times(root: Path, jobs: Mapping[int, tuple[int, ...]]) -> dict[int, JobCpuTime | None]:
    """Return the present CPU time of jobs' processes.

    Args:
        root: where /proc is found.
        jobs: process ids known to belong to each job; its slurmstepds are found without.

    Returns:
        By job id; None for a job without a living process.
    """
    everything = read_processes(root)
    titled = find_slurmstepds(root, everything)
    children: dict[int, list[int]] = {}
    for pid, process in everything.items():
        children.setdefault(process.parent, []).append(pid)
    return {
        job_id: _sum(everything, _below(children, [*pids, *titled.get(job_id, [])], everything))
        for job_id, pids in jobs.items()
    }


def _below(
    children: Mapping[int, list[int]], roots: Iterable[int], known: Mapping[int, ProcessStat]
) -> set[int]:
    found: set[int] = set()
    todo = [pid for pid in roots if pid in known]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


def _sum(everything: Mapping[int, ProcessStat], pids: set[int]) -> JobCpuTime | None:
    if not pids:
        return None
    living = {(pid, everything[pid].started): everything[pid].ticks for pid in pids}
    waited = sum(everything[pid].waited_ticks for pid in pids)
    return JobCpuTime(sum(living.values()) + waited, living, waited)


def accumulate(earlier: JobCpuTime | None, later: JobCpuTime | None) -> JobCpuTime | None:
    """Return the job's time so far.

    A process that vanished and was waited for shows up in `waited`, with what was counted of it already;
    one that nobody waited for keeps what was counted.
    """
    if earlier is None or later is None:
        return later or earlier
    grown = sum(ticks - earlier.living.get(key, 0) for key, ticks in later.living.items())
    vanished = sum(ticks for key, ticks in earlier.living.items() if key not in later.living)
    ended = max(0, later.waited - earlier.waited - vanished)
    return JobCpuTime(earlier.ticks + max(0, grown) + ended, later.living, later.waited)


def _is_slurmd_s(folder: Path) -> bool:
    """Return whether a process runs as root or as we do, who stand in for root in a lab."""
    try:
        return folder.stat().st_uid in (0, os.geteuid())
    except OSError:
        return False


def _head(path: str, size: int) -> bytes:
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
