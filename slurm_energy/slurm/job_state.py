"""Queries of the states of jobs in Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.command import CommandRunner, Runner
from slurm_energy.slurm.command_output import FixedWidth, squeue_rows

TIMEOUT_S: Final = 5.0
_NO_SUCH_JOB: Final = "Invalid job id"
_STATE: Final = FixedWidth({"State": 40})
_STATES: Final = FixedWidth({"JobIDRaw": 20, "State": 40, "NNodes": 12})
PENDING: Final = (
    "PENDING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "EXPEDITING",  # from 25.11 on: sbatch --requeue=expedite
)
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

    For an array or a heterogeneous job, the state is that of the first task or component that has not ended.

    Args:
        job_id: job id as users write it: `12`, `12_3`, `14+0`.
        run: function that executes a command and returns the output; None means a runner with a timeout of
            `TIMEOUT_S`.

    Returns:
        The state; empty if Slurm does not know the job; None if the state is unknown because Slurm does not
        answer or keeps no accounting of finished jobs.
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


@dataclass(frozen=True, slots=True)
class JobStatus:
    """State of a job in Slurm.

    Attributes:
        state: state as Slurm writes it, such as `COMPLETED`.
        nodes: number of allocated nodes; None means unknown.
    """

    state: str
    nodes: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether the job is pending or running."""
        return self.state in (*RUNNING, *PENDING)


def read_job_states(job_ids: Sequence[int], run: Runner | None = None) -> dict[int, JobStatus]:
    """Return the status of several jobs. None of them may be an array or a heterogeneous job.

    One squeue command reads the jobs that slurmctld knows. One sacct command reads the remaining jobs. Jobs
    that neither command knows are missing from the result. A failure of sacct is no error, because a cluster
    may keep no accounting.

    Args:
        job_ids: numeric job ids.
        run: function that executes a command and returns the output; None means a runner with a timeout of
            `TIMEOUT_S`.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    run = run or CommandRunner(TIMEOUT_S)
    if not job_ids:
        return {}
    listed = ",".join(map(str, job_ids))
    try:
        rows = list(squeue_rows(["-h", "-t", "all", "-j", listed], ["%A", "%T", "%D"], run))
    except UnavailableError as error:
        if _NO_SUCH_JOB not in str(error):
            raise
        rows = []
    statuses = _statuses(rows)
    if missing := [str(job_id) for job_id in job_ids if job_id not in statuses]:
        argv = ["sacct", "-n", "-X", "-j", ",".join(missing), f"--format={_STATES.format}"]
        try:
            statuses |= _statuses(list(_STATES.rows(run(_STATES.command(argv)), "sacct")))
        except UnavailableError:
            return statuses
    return statuses


def read_displayed_ids(job_ids: Sequence[str], run: Runner | None = None) -> dict[int, str]:
    """Return the ids of active jobs as Slurm shows them (`12_3`, `14+0`), by numeric job id.

    The result contains the tasks and components of active arrays and heterogeneous jobs. It is empty if no
    job is active, or if slurmctld does not answer.

    Args:
        job_ids: job ids as users write them: `12`, `12_3`, `14+0`.
        run: function that executes a command and returns the output; None means a runner with a timeout of
            `TIMEOUT_S`.
    """
    run = run or CommandRunner(TIMEOUT_S)
    try:
        rows = list(squeue_rows(["-h", "-j", ",".join(job_ids)], ["%A", "%i"], run))
    except UnavailableError:
        return {}
    return {int(job_id): displayed for job_id, displayed in rows if job_id.isdecimal()}


def find_own_jobs(names: Sequence[str], run: Runner | None = None) -> dict[str, int]:
    """Return the ids of the caller's own jobs with given names.

    The result maps the job name to the job id. Jobs that ended a few minutes ago are included.

    Args:
        names: job names to find.
        run: function that executes a command and returns the output; None means a runner with a timeout of
            `TIMEOUT_S`.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    run = run or CommandRunner(TIMEOUT_S)
    rows = squeue_rows(["-h", "-t", "all", "--me"], ["%A", "%j"], run)
    return {name: int(job_id) for job_id, name in rows if name in names and job_id.isdecimal()}


def _statuses(rows: Sequence[Sequence[str]]) -> dict[int, JobStatus]:
    return {
        int(job_id): JobStatus(state.split(" ")[0], int(nodes) if nodes.isdecimal() else None)
        for job_id, state, nodes in rows
        if job_id.isdecimal()
    }
