"""Tasks (threads) of a job: the tasks in its cgroup, or else in its slurmstepds' process trees."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_energy.devices.cpu import process_tree
from slurm_energy.devices.cpu.cpu_time import PROCESS_TREE, JobProcesses


def threads_of(root: Path, pids: Iterable[int]) -> set[int]:
    """Return the ids of all threads of the given processes. Processes that have ended add no threads.

    Args:
        root: directory that contains /proc.
        pids: ids of processes.
    """
    tids: set[int] = set()
    for pid in pids:
        try:
            tids.update(int(entry.name) for entry in os.scandir(root / f"proc/{pid}/task"))
        except (OSError, ValueError):
            continue
    return tids


def job_tasks(root: Path, jobs: Mapping[JobProcesses, str | None]) -> dict[int, set[int]]:
    """Return the task ids of each job, by job id.

    Args:
        root: directory that contains /sys and /proc.
        jobs: each job with the source of its CPU time, as returned by `JobCpuTimeReader.source`. If the
            cgroup of the job is known, the source is a file of this cgroup.
    """
    pids = {
        job.job_id: processes_of_group(Path(source).parent)
        for job, source in jobs.items()
        if source is not None and source != PROCESS_TREE
    }
    rest = {job.job_id: job.pids for job in jobs if not pids.get(job.job_id)}
    if rest:
        pids |= process_tree.job_pids(root, rest)
    return {job.job_id: threads_of(root, pids.get(job.job_id, ())) for job in jobs}


def processes_of_group(folder: Path) -> set[int]:
    """Return the processes in a cgroup and in all cgroups below it.

    A cgroup without a process list adds no processes.
    """
    pids: set[int] = set()
    for path, _, files in os.walk(folder):
        if "cgroup.procs" not in files:
            continue
        try:
            text = Path(path, "cgroup.procs").read_text(encoding="ascii")
            pids.update(int(word) for word in text.split())
        except (OSError, ValueError):
            continue
    return pids - {0}
