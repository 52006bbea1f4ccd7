"""Filter of jobs by state and job name, which only Slurm's accounting knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.reports.usage import JobUsage
from slurm_energy.spelling import suggestion

STATES: Final = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "TO": "TIMEOUT",
}
"""States of jobs by their short names. Source: sacct(1) of Slurm 22.05, JOB STATE CODES."""


def job_states(text: str) -> frozenset[str]:
    """Parse a comma-separated list of Slurm job states such as `completed,F`.

    Raises:
        UsageError: a name is not a job state of Slurm.
    """
    states = set()
    for word in filter(None, text.split(",")):
        name = word.strip().upper()
        state = STATES.get(name, name)
        if state not in STATES.values():
            hint = suggestion(word.strip(), [*STATES.values()]) or f"use {', '.join(STATES.values())}"
            raise UsageError(f"--state: '{shown(word)}' is not a state of jobs", todo=hint)
        states.add(state)
    return frozenset(states)


def filter_jobs(
    jobs: Iterable[JobUsage], states: Collection[str] | None, names: str | None
) -> list[JobUsage]:
    """Return the jobs that have one of the states and one of the names.

    Jobs whose state or name Slurm's accounting has not supplied yet are left out.

    Args:
        jobs: jobs with steps, or steps alone.
        states: states; None means any state.
        names: comma-separated list of job names; None means any name.
    """
    name_set = {name for name in names.split(",") if name} if names else None
    return [
        job
        for job in jobs
        if (states is None or (job.job.state or "").split(" ")[0] in states)
        and (name_set is None or job.job.name in name_set)
    ]
