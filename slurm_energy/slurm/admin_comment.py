"""Reader and writer of the AdminComment of ended jobs, which Slurm's accounting stores."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from slurm_energy.slurm.command import CommandFailedError, Runner
from slurm_energy.slurm.command_output import FixedWidth

MAX_LENGTH: Final = 4096
_COMMENTS: Final = FixedWidth({"JobIDRaw": 20, "Submit": 24, "AdminComment": MAX_LENGTH})
_NOTHING: Final = "Nothing modified"


class AdminComment(NamedTuple):
    """AdminComment of one run of a job.

    Attributes:
        job_id: Slurm's job id.
        submit: submission of the run, Unix seconds.
        text: the comment; texts longer than `MAX_LENGTH` bytes are cut off.
    """

    job_id: int
    submit: float
    text: str


def read_admin_comments(job_ids: Collection[int], run: Runner) -> list[AdminComment]:
    """Return the comments of the last runs of jobs with one sacct command.

    Raises:
        UnavailableError: Slurm's accounting does not answer.
    """
    listed = ",".join(map(str, sorted(job_ids)))
    command = _COMMENTS.command(["sacct", "-n", "-X", "-j", listed, f"--format={_COMMENTS.format}"])
    return [
        AdminComment(int(job_id), float(submit), text)
        for job_id, submit, text in _COMMENTS.rows(run(command), "sacct")
        if job_id.isdecimal() and submit.isdecimal()
    ]


def write_admin_comment(job_id: int, cluster: str, text: str, run: Runner) -> bool:
    """Replace the AdminComment of a job's last run; return whether Slurm's accounting knows the job.

    Args:
        job_id: Slurm's job id.
        cluster: Slurm's ClusterName.
        text: the new comment, of printable ASCII characters.
        run: function that executes a command.

    Raises:
        UnavailableError: Slurm's accounting does not answer, or refuses.
    """
    where = [f"jobid={job_id}", f"cluster={cluster}"]
    try:
        run(["sacctmgr", "-i", "-Q", "modify", "job", "where", *where, "set", f"AdminComment={text}"])
    except CommandFailedError as error:
        if _NOTHING in error.output:
            return False
        raise
    return True
