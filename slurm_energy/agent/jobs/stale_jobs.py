"""Detection of jobs that ended without an epilog.

Without an epilog, Slurm does not announce the end of the job to the agent. Such a job is recognised by the
end of its batch step or extern step.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.devices.cpu import process_tree

EPILOG_GRACE_S = 600.0
"""Other epilogs of the site may run, one after the other, before the epilog of slurm-energy."""
NO_EPILOG_NOTE = "no epilog ran within 10 minutes of the job's end: ended then, so the end is an upper bound"
NEXT_JOB_NOTE = "no epilog ran: ended when the next job began, so the end is an upper bound"


def stale_jobs(sessions: Iterable[Session], root: Path, now: float) -> list[Session]:
    """Return the jobs that ended more than EPILOG_GRACE_S ago and whose epilog has not run.

    A job has ended when its batch or extern step has ended. The end of the step was either reported, or its
    slurmstepd was seen alive earlier and is gone now. A job without a batch or extern step counts as
    running.

    Args:
        sessions: sessions of the running jobs. The time of a detected end is stored in the job's session.
        root: directory that contains `proc` of the node, usually `/`.
        now: time in seconds since boot.
    """
    stale = []
    for session in sessions:
        if session.steps_ended_at is None and _is_over(session, root):
            session.steps_ended_at = now
        if session.steps_ended_at is not None and now - session.steps_ended_at > EPILOG_GRACE_S:
            stale.append(session)
    return stale


def living_jobs(root: Path) -> frozenset[int]:
    """Return the ids of the jobs that have a slurmstepd process on this node.

    Args:
        root: directory that contains `proc` of the node, usually `/`.
    """
    try:
        return frozenset(process_tree.find_slurmstepds(root, process_tree.process_ids(root)))
    except OSError:
        return frozenset()


def _is_over(session: Session, root: Path) -> bool:
    containers = [step for step in session.steps.values() if step.is_container and step.pid is not None]
    pids = [step.pid for step in containers if step.pid is not None]
    alive = set(process_tree.find_slurmstepds(root, pids).get(session.job_id, []))
    over = any(step.process_seen and step.pid not in alive for step in containers)
    for step in containers:
        step.process_seen = step.process_seen or step.pid in alive
    return over
