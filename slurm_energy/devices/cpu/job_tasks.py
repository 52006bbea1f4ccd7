"""Tasks (threads) of a job: those in its control group, or else of its slurmstepds and their descendants."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_energy.devices.cpu import process_tree
from slurm_energy.devices.cpu.cpu_time import PROCESS_TREE, JobProcesses


def threads_of(root: Path, pids: Iterable[int]) -> set[int]:
    """Return the ids of all threads of processes. Processes that have ended have none.

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
    """Return the ids of the tasks of jobs by job id.

    Args:
        root: directory that contains /sys and /proc.
        jobs: jobs with the source of their CPU time as `JobCpuTimeReader.source` returns it: a file of the
            job's control group, if that is known.
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
    """Return the processes in a control group and in all groups below it; groups without list have none."""
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
