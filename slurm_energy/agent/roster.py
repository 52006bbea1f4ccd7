"""The jobs that run on this node, and how they are found by what hooks and people know of them."""

from __future__ import annotations

from slurm_energy.agent.session import Session
from slurm_energy.errors import NotFoundError


class Roster(dict[tuple[int, int], Session]):
    """Sessions by job id and restart count."""

    def running(self, job_id: int) -> Session | None:
        """Return the latest run of a job."""
        runs = [session for session in self.values() if session.job_id == job_id]
        return max(runs, key=lambda session: session.restart_count, default=None)

    def must_run(self, job_id: int) -> Session:
        """Return the latest run of a job.

        Raises:
            NotFoundError: it does not run here.
        """
        session = self.running(job_id)
        if session is None:
            raise NotFoundError(f"job {job_id} does not run on this node")
        return session

    def only_run(self, job_id: int) -> Session | None:
        """Return a job's run if it has one: an epilog may name another restart count than its prolog."""
        runs = [session for session in self.values() if session.job_id == job_id]
        return runs[0] if len(runs) == 1 else None
