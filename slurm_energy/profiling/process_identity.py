"""Who is measured: job, step, node, rank and process, and where the lines go. Names only, no authority."""

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
    """A process of a job.

    Attributes:
        job_id: None outside Slurm.
        step: Slurm's step number; None outside steps.
        node: node name as Slurm knows it, else the host's.
        rank: of the task; None if nothing tells it.
        pid: of the process.
    """

    job_id: int | None
    step: str | None
    node: str
    rank: int | None
    pid: int

    @property
    def file_name(self) -> str:
        """Name of the file for this process's lines; no other process has the same."""
        parts = [f"job{self.job_id}" if self.job_id is not None else "nojob"]
        parts += [f"step{self.step}"] if self.step is not None else []
        parts += [f"rank{self.rank}"] if self.rank is not None else []
        return _UNSAFE.sub("_", "-".join([*parts, self.node, str(self.pid)])) + ".jsonl"


def current_process(environment: Mapping[str, str] = os.environ) -> ProcessIdentity:
    """Return this process's place from what Slurm and MPI say in the environment."""
    ranks = (_number(environment.get(key)) for key in _RANK_KEYS)
    return ProcessIdentity(
        job_id=_number(environment.get("SLURM_JOB_ID")),
        step=environment.get("SLURM_STEP_ID") or None,
        node=environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
        rank=next((rank for rank in ranks if rank is not None), None),
        pid=os.getpid(),
    )


def profile_directory(place: ProcessIdentity, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return where lines are written: $SENERGY_PROFILE_DIR (empty: nowhere), in a job else its own folder."""
    named = environment.get(DIRECTORY_KEY)
    if named is not None:
        return Path(named) if named else None
    return None if place.job_id is None else Path(f"senergy-profile.{place.job_id}")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
