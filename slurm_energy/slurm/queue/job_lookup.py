"""Look-up of one job in the queue by the job id that a user wrote."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from slurm_energy.errors import NotFoundError, UnavailableError
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.command_output import squeue_rows
from slurm_energy.slurm.queue.running_jobs import LARGEST_UID

_ID: Final = re.compile(r"\d{1,10}(?:_\d{1,10})?", re.ASCII)
_FIELDS: Final = ("JobID", "UserID", "Account", "State")
_OPTIONS: Final = ("-a", "-h", "--local", "-t", "PD,R,CF,S,CG")


class QueuedJob(NamedTuple):
    """A job in the queue of slurmctld.

    Attributes:
        job_id: Slurm's job id.
        uid: uid of the owner.
        account: Slurm account of the job; empty if not set.
        is_pending: whether the job has not started.
    """

    job_id: int
    uid: int
    account: str
    is_pending: bool


def find_queued_job(text: str, run: Runner = run_command) -> QueuedJob:
    """Return the queued job with an id. Of several pending tasks of an array, the first one is returned.

    Args:
        text: job id, or `ARRAY_TASK` such as `12_3`.
        run: function that runs squeue.

    Raises:
        NotFoundError: the job is not in the queue.
        UnavailableError: slurmctld does not answer.
    """
    if not _ID.fullmatch(text):
        raise NotFoundError("job", "is not a job id")
    try:
        rows = list(squeue_rows((*_OPTIONS, "-j", text), _FIELDS, run))
    except UnavailableError as error:
        if "Invalid job id" not in str(error):
            raise
        rows = []
    for number, uid, account, state in rows:
        if number.isdecimal() and uid.lstrip("-").isdecimal():
            return QueuedJob(int(number), int(uid) & LARGEST_UID, account, state == "PENDING")
    raise NotFoundError(f"job {text}", "is not in Slurm's queue")
