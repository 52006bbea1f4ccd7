"""Query of the state of one job that a user names and that has no energy record."""

from __future__ import annotations

from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.command import CommandRunner, Runner
from slurm_energy.slurm.command_output import FixedWidth, squeue_rows

TIMEOUT_S: Final = 5.0
_NO_SUCH_JOB: Final = "Invalid job id"
_STATE: Final = FixedWidth({"State": 40})
PENDING: Final = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
RUNNING: Final = (
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "CONFIGURING",
    "STAGE_OUT",
    "STOPPED",
    "RESIZING",
    "SIGNALING",
)


def read_job_state(job_id: str, run: Runner | None = None) -> str | None:
    """Return the state of a job as Slurm writes it, such as `RUNNING`.

    For an array or a heterogeneous job, it is the state of the first task or component that has not ended.

    Args:
        job_id: job id as users write it: `12`, `12_3`, `14+0`.
        run: executes a command and returns its output; None: a runner with a timeout of `TIMEOUT_S`.

    Returns:
        The state. It is empty if Slurm does not know the job. It is None if the state is unknown, because
        Slurm does not answer or keeps no accounting of finished jobs.
    """
    run = run or CommandRunner(TIMEOUT_S)
    try:
        states = [row[0] for row in squeue_rows(["-h", "-t", "all", "-j", job_id], ["%T"], run)]
    except UnavailableError as error:
        if _NO_SUCH_JOB not in str(error):
            return None
        states = []
    if states:
        return next((state for state in states if state in (*RUNNING, *PENDING)), states[0])
    try:
        command = _STATE.command(["sacct", "-n", "-X", "-j", job_id, f"--format={_STATE.format}"])
        finished = [row[0].split(" ")[0] for row in _STATE.rows(run(command), "sacct")]
    except UnavailableError:
        return None
    return finished[0] if finished else ""
