"""Identification of slurmstepd processes: the Slurm step that a process id belongs to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

_TITLE: Final = re.compile(rb"slurmstepd: \[(\d{1,10})\.([a-z0-9]{1,32})(?:\+\d+)?(?: stepmgr)?\]")
_CGROUP: Final = re.compile(rb"/job_(\d{1,10})/step_([a-z0-9]{1,32})(?:\+\d+)?(?:/|$)", re.MULTILINE)
_MAX_BYTES: Final = 4096
_PROGRAM: Final = b"slurmstepd"


class StepProcess(NamedTuple):
    """The Slurm step that a slurmstepd process runs.

    Attributes:
        job_id: Slurm's job id; None if the process is a slurmstepd whose step cannot be determined.
        step: Slurm's name of the step, for example `0`, `batch` or `extern`.
    """

    job_id: int | None
    step: str


def step_of_process(root: Path, pid: int) -> StepProcess | None:
    """Return the Slurm step of a slurmstepd; None if the process is not a slurmstepd.

    The step is read from the process title, `slurmstepd: [JOB.STEP]`, or else from the cgroup. With
    stepmgr, the title of the extern step is `slurmstepd: [JOB.extern stepmgr]`. Any user can choose a process
    title, so the caller must check that the process runs as root.

    Args:
        root: directory that contains `proc`.
        pid: process id.
    """
    folder = root / "proc" / str(pid)
    title = _head(folder / "cmdline")
    if match := _TITLE.match(title):
        return StepProcess(int(match[1]), match[2].decode())
    if not title.split(b"\0")[0].rpartition(b"/")[2].startswith(_PROGRAM):
        return None
    if match := _CGROUP.search(_head(folder / "cgroup")):
        return StepProcess(int(match[1]), match[2].decode())
    return StepProcess(None, "")


def has_children(root: Path, pid: int) -> bool:
    """Return whether a process has child processes.

    A slurmstepd has no child processes before its first task starts and after its last task has ended.

    Args:
        root: directory that contains `proc`.
        pid: process id.
    """
    return any(_head(path).strip() for path in (root / "proc" / str(pid) / "task").glob("*/children"))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(_MAX_BYTES) or b""
    except OSError:
        return b""
