"""Facts about suspended jobs that senergyctld stores in order to survive a restart.

A job is suspended by a requeue: slurmctld ends its run and starts the job again at a later begin time. The
module does not import numpy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.accounting.decisions import NOT_SUSPENDED, SUSPEND, Decision

_SAME_SUBMIT_S: Final = 1.5
_EARLIER_S: Final = 300.0  # munge refuses a larger difference between the clocks of two hosts
_LATER_S: Final = 900.0  # KillWait, and the epilog


@dataclass(frozen=True, slots=True)
class SuspendedJob:
    """A suspension of a job. Times are Unix seconds.

    Attributes:
        job_id, submit_s: job id and submission time of the run that the suspension ended.
        restart_count: number of requeues before that run.
        since_s: time of the suspension.
        suspensions: number of suspensions of the job, including the present suspension.
        latest_start_s: time by which the first run of the job had to start.
        deadline_start_s: latest start that the job's deadline permits; None means that the job has no
            deadline.
        work_s: time for which the job has worked in all its runs, without the time that restarts cost.
        restart_s: time that a restart of the job costs.
        resume_by_s: time by which the job must start again.
        planned_start_s: planned time of the job's next start.
        policy, currency, unit, cost_now, cost_planned, signal_now, signal_planned: as in `DeferredJob`.
    """

    job_id: int
    submit_s: float
    restart_count: int
    since_s: float
    suspensions: int
    latest_start_s: float
    deadline_start_s: float | None
    work_s: float
    restart_s: float
    resume_by_s: float
    planned_start_s: float
    policy: str
    currency: str
    unit: str
    cost_now: float | None = None
    cost_planned: float | None = None
    signal_now: float | None = None
    signal_planned: float | None = None

    def precedes(self, restart_count: int, submit_s: float) -> bool:
        """Return whether a run of the job continues the suspended run.

        Slurm gives a requeued job a new submission time. A run that follows another requeue, caused by a
        failed node or a user, does not continue the suspended run.

        Args:
            restart_count: number of requeues before the run.
            submit_s: submission time of the run.
        """
        since_s = submit_s - self.since_s
        return restart_count == self.restart_count + 1 and -_EARLIER_S <= since_s <= _LATER_S

    def ends(self, restart_count: int, submit_s: float) -> bool:
        """Return whether a given run of the job was ended by this suspension.

        The run is identified by its restart count and submission time.
        """
        return restart_count == self.restart_count and abs(submit_s - self.submit_s) <= _SAME_SUBMIT_S

    def decision(self) -> Decision:
        """Return this suspension as an entry of the audit trail."""
        details = dataclasses.asdict(self)
        for key in ("job_id", "submit_s"):
            del details[key]
        why = f"suspended by {self.policy}: the rest of its work is expected to be better later"
        return Decision(self.job_id, self.submit_s, self.since_s, SUSPEND, why, details)

    def failure_decision(self, now_s: float) -> Decision:
        """Return the entry of the audit trail that says that the suspension did not take place."""
        why = "slurmctld did not requeue it"
        details = {"since_s": self.since_s}
        return Decision(self.job_id, self.submit_s, now_s, NOT_SUSPENDED, why, details)


def restored_suspensions(decisions: Iterable[Decision]) -> list[SuspendedJob]:
    """Return the suspensions of jobs that an earlier senergyctld wrote to its audit trail.

    The oldest entry comes first. Entries that another release wrote in another form are left out. The audit
    trail may also contain suspensions that were stored but never carried out. They are harmless, because
    they match no run of a job.
    """
    names = {field.name for field in dataclasses.fields(SuspendedJob)}
    restored: list[SuspendedJob] = []
    for one in decisions:
        if one.kind == NOT_SUSPENDED:
            failed = one.job_id, one.details.get("since_s")
            restored = [known for known in restored if (known.job_id, known.since_s) != failed]
        if one.kind != SUSPEND:
            continue
        facts: dict[str, Any] = {key: value for key, value in one.details.items() if key in names}
        try:
            restored.append(SuspendedJob(job_id=one.job_id, submit_s=one.submit, **facts))
        except TypeError:
            continue
    return restored
