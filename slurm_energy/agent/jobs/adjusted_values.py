"""Values that senergyctld advises for running programs, for example the number of workers.

A program asks the agent for a value. The agent requests the value from senergyctld, and keeps it until the
job ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.adjustment import PROGRAM_KINDS, AdjustmentKind, kind_named
from slurm_energy.agent.jobs.sessions import SessionTable
from slurm_energy.errors import ForbiddenError, UsageError
from slurm_energy.protocol.adjustment_requests import ValuesRequest, program_values

_RETRY_S: Final = 10.0
"""Seconds after which senergyctld is asked again if it did not answer or did not know the program."""

JobKey = tuple[int, int]


@dataclass(slots=True)
class _JobValues:
    """Advised values of one job, and the state of the requests for them.

    Attributes:
        requested: kinds of values, for example `workers`, that the program has requested.
        reported: requested kinds that a request to senergyctld has contained.
        values: values by kind; None before the first answer.
        next_s: time of the monotonic clock before which no request is sent to senergyctld.
    """

    requested: set[AdjustmentKind] = field(default_factory=set)
    reported: frozenset[AdjustmentKind] = frozenset()
    values: dict[str, int] | None = None
    next_s: float = 0.0


class AdjustedValues:
    """Values that senergyctld advises for the programs of running jobs on a node.

    The values of ended jobs are deleted.

    Args:
        sessions: sessions of the running jobs.
        clock: function that returns monotonic seconds.
    """

    def __init__(self, sessions: SessionTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions, self._clock = sessions, clock
        self._jobs: dict[JobKey, _JobValues] = {}

    def ask(self, job_id: int, name: Any, reader: int | None) -> dict[str, Any]:
        """Return the response to a program that asks for a value.

        In the response, `value` is null if the value is not adjusted, and `pending` is true if senergyctld
        has not answered yet.

        Args:
            job_id: Slurm's job id.
            name: name of the requested value, for example `workers`.
            reader: uid of the sender; None for a user who may ask for every job.

        Raises:
            NotFoundError: the job does not run here.
            ForbiddenError: the job belongs to another user.
            UsageError: the kind is unknown, or programs may not ask for it.
        """
        session = self._sessions.require_run(job_id)
        if reader not in (None, session.uid):
            raise ForbiddenError(f"adjusted values: job {job_id} belongs to another user")
        kind = kind_named(name)
        if kind not in PROGRAM_KINDS:
            raise UsageError(f"adjusted values: {kind.value} is an option of sbatch")
        self._forget_ended_jobs()
        job = self._jobs.setdefault(session.key, _JobValues())
        job.requested.add(kind)
        value = None if job.values is None else job.values.get(kind.value)
        return {"value": value, "pending": job.values is None and self._clock() >= job.next_s}

    @property
    def has_requests(self) -> bool:
        """Whether a request to senergyctld is due."""
        return any(self._is_due(job) for job in self._jobs.values())

    def requests(self) -> list[ValuesRequest]:
        """Return the requests for adjusted values that the agent must send to senergyctld now."""
        self._forget_ended_jobs()
        requests = []
        for key, job in self._jobs.items():
            session = self._sessions.get(key)
            if session is not None and self._is_due(job):
                requests.append(
                    ValuesRequest(
                        *(session.node, session.job_id, session.restart_count),
                        *(frozenset(job.requested), session.fingerprint, session.model),
                    )
                )
        return requests

    def answer(self, request: ValuesRequest, response: Mapping[str, Any] | None) -> None:
        """Store the adjusted values that senergyctld has sent in response to a request.

        Args:
            request: the request.
            response: the response; None if senergyctld did not answer.
        """
        job = self._jobs.get((request.job_id, request.restart_count))
        if job is None:
            return
        if response is None or response.get("known") is not True:
            job.next_s = self._clock() + _RETRY_S
            return
        job.reported = request.requested
        if job.values is None:  # all processes of a job get the same values
            job.values = program_values(response)

    def _is_due(self, job: _JobValues) -> bool:
        return job.requested != job.reported and self._clock() >= job.next_s

    def _forget_ended_jobs(self) -> None:
        for key in self._jobs.keys() - self._sessions.keys():
            del self._jobs[key]
