"""Identity of the measured process, and the directory of its output file.

The identity consists of job, step, node, rank and process id. It is read from environment variables and
grants no rights.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DIRECTORY_KEY = "SENERGY_PROFILE_DIR"
_RANK_KEYS = ("SLURM_PROCID", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of a process of a job.

    Attributes:
        job_id: Slurm's job id; None outside Slurm.
        step: Slurm's step number; None outside Slurm steps.
        node: Slurm's name of the node; outside Slurm the host name.
        rank: rank of the task; None if the environment does not name the rank.
        pid: process id.
    """

    job_id: int | None
    step: str | None
    node: str
    rank: int | None
    pid: int

    @property
    def file_name(self) -> str:
        """Name of the file to which this process writes its sections. No other process uses the same name."""
        parts = [f"job{self.job_id}" if self.job_id is not None else "nojob"]
        parts += [f"step{self.step}"] if self.step is not None else []
        parts += [f"rank{self.rank}"] if self.rank is not None else []
        return _UNSAFE.sub("_", "-".join([*parts, self.node, str(self.pid)])) + ".jsonl"


def current_process(environment: Mapping[str, str] = os.environ) -> ProcessIdentity:
    """Return the identity of this process from the environment variables of Slurm and MPI."""
    ranks = (_number(environment.get(key)) for key in _RANK_KEYS)
    return ProcessIdentity(
        job_id=_number(environment.get("SLURM_JOB_ID")),
        step=environment.get("SLURM_STEP_ID") or None,
        node=environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
        rank=next((rank for rank in ranks if rank is not None), None),
        pid=os.getpid(),
    )


def profile_directory(process: ProcessIdentity, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory of the file to which a process writes its sections; None means to write no file.

    The variable SENERGY_PROFILE_DIR names the directory. If the variable is set but empty, no file is
    written. If the variable is not set, a job writes to `senergy-profile.JOBID` in its working directory, and
    a program outside Slurm writes no file.

    Args:
        process: identity of the process.
        environment: environment variables of the process.
    """
    configured = environment.get(DIRECTORY_KEY)
    if configured is not None:
        return Path(configured) if configured else None
    return None if process.job_id is None else Path(f"senergy-profile.{process.job_id}")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
