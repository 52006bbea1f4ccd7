"""A submitted job: its state in Slurm, and its energy record and power trace in senergyctld."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from slurm_energy.config import load
from slurm_energy.errors import NotFoundError
from slurm_energy.frames import controller_frames
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.reports.labels.json_view import job_object
from slurm_energy.reports.usage import JobUsage
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.slurm.job_state import JobStatus, read_job_states

_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0
_PAUSE_FACTOR: Final = 1.5
RECORD_TIMEOUT_S: Final = 120.0
"""Time in which nodes deliver the records of an ended job, and Slurm's accounting knows its end."""


class EnergyJob:
    """A job in Slurm, with methods that wait for the job, cancel it and read its energy data.

    Args:
        job_id: Slurm's job id.
        controller: client of the senergyctld that `record` and `trace` query; None means as configured.
        cluster: Slurm's name of the job's cluster. None means `cluster.name` of the configuration if
            `controller` is None, too; otherwise it means that only one cluster has a job with this id.

    Attributes:
        job_id: Slurm's job id.
    """

    def __init__(
        self, job_id: int, controller: ControllerClient | None = None, cluster: str | None = None
    ) -> None:
        self.job_id = job_id
        self._controller = controller
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"EnergyJob({self.job_id})"

    @property
    def state(self) -> str:
        """State of the job in Slurm's notation, such as `RUNNING`.

        Raises:
            NotFoundError: Slurm does not know the job.
            UnavailableError: slurmctld does not answer.
        """
        return self._status().state

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait for the end of the job and return the final state. The pauses between queries grow to 30 s.

        Args:
            timeout_s: maximum time to wait in seconds; None means unlimited.

        Raises:
            TimeoutError: the job has not ended in this time.
            NotFoundError: Slurm does not know the job.
            UnavailableError: slurmctld does not answer.
        """
        for _ in _pauses(timeout_s):
            status = self._status()
            if not status.is_active:
                return status.state
        raise TimeoutError(f"job {self.job_id} has not ended within {timeout_s:g} s")

    def record(self, timeout_s: float = RECORD_TIMEOUT_S) -> dict[str, Any]:
        """Return energy, power, settings and steps of the ended job.

        Args:
            timeout_s: maximum seconds to wait until all nodes have delivered their records.

        Returns:
            Object in the form of `senergy job --json`, see docs/reference/json.md.

        Raises:
            NotFoundError: senergyctld has no complete record after this time.
            UsageError: the id names several jobs, such as the components of a heterogeneous job.
            ForbiddenError: the job belongs to another user.
            UnavailableError: senergyctld does not answer.
        """
        return job_object(self._usage(timeout_s))

    def trace(self, timeout_s: float = RECORD_TIMEOUT_S) -> Any:
        """Return the power trace of the ended job as a data frame; see `frames.trace` for the columns.

        Args:
            timeout_s: maximum seconds to wait until all nodes have delivered their records.

        Raises:
            NotFoundError: senergyctld has no complete record after this time, or no trace.
            UsageError: the id names several jobs, such as the components of a heterogeneous job.
            ForbiddenError: the job belongs to another user.
            UnavailableError: senergyctld does not answer, or pandas is missing.
        """
        return controller_frames.trace_frame(self._usage(timeout_s))

    def cancel(self) -> None:
        """Cancel the job. If the job has ended, do nothing.

        Raises:
            UnavailableError: scancel failed.
        """
        CommandRunner(timeout_s=60.0)(["scancel", str(self.job_id)])

    def _status(self) -> JobStatus:
        status = read_job_states([self.job_id]).get(self.job_id)
        if status is None:
            raise NotFoundError(f"job {self.job_id}", "Slurm does not know it")
        return status

    def _client(self) -> ControllerClient:
        if self._controller is None:
            self._controller = controller_frames.client()
            self._cluster = self._cluster or load().cluster.name
        return self._controller

    def _usage(self, timeout_s: float) -> JobUsage:
        reason = "senergyctld has no record of it"
        for _ in _pauses(timeout_s):
            try:
                answer = self._client().get(f"/v1/jobs/{self.job_id}")
            except NotFoundError:
                continue
            usage = controller_frames.only_job(self.job_id, answer, self._cluster)
            if usage is None:
                continue
            if usage.missing_nodes == 0:
                return usage
            reason = "records of some nodes, or facts of Slurm's accounting, are missing"
        raise NotFoundError(f"job {self.job_id}", f"{reason} after {timeout_s:g} s")


def _pauses(timeout_s: float | None) -> Iterator[None]:
    """Yield at once, and then again after increasing pauses, until `timeout_s` is over."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        yield
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            pause_s = min(pause_s, left_s)
        time.sleep(pause_s)
        pause_s = min(_MAX_PAUSE_S, max(pause_s, _FIRST_PAUSE_S) * _PAUSE_FACTOR)
