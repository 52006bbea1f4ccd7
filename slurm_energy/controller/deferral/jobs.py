"""Facts about deferred jobs.

The database stores these facts. Users and explanations show them. The module does not use numpy.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.accounting.decisions import DEFER, RELEASE, Decision

_SAME_SUBMIT_S: Final = 1.5
_NOT_SHOWN: Final = ("held_s", "held_since_s", "hold_end_s", "eligible_again_s")


@dataclass(slots=True)
class DeferredJob:
    """A pending job that is or was deferred. Times are Unix seconds.

    Attributes:
        job_id, submit_s: job id and submission time, which together identify the job.
        eligible_s: time at which the job could have started without deferral.
        latest_start_s: time until which the job may be held.
        since_s: start of the first hold.
        planned_start_s: start of the time slot for which the job waits.
        policy: name of the deferral policy that deferred the job.
        currency: currency of prices and costs.
        unit: unit of the costs: `currency`, or `g` of CO2 equivalents.
        cost_now: expected cost of a start at once; None means unknown.
        cost_planned: expected cost of the planned start; None means unknown.
        cost_deviation: standard deviation of `cost_planned`; None means unknown.
        signal_now: price per kWh, or emissions in grams per kWh, when the plan was made; None means unknown.
        signal_planned: price per kWh, or emissions in grams per kWh, expected in the planned time slot; None
            means unknown.
        predicted_s: predicted run time; None means unknown.
        held_s: total duration of earlier holds.
        held_since_s: start of the current hold; None means that the job is not held now.
        hold_end_s: end of the last hold; None means that no hold has ended. Holds by a quota or a power
            budget after the deferral count too.
        eligible_again_s: after the last hold, the user may have held the job or moved its begin time. The job
            could start again from this time on. None means that the user did neither.
        suspensions: number of times that the job was suspended while it ran.
    """

    job_id: int
    submit_s: float
    eligible_s: float
    latest_start_s: float
    since_s: float
    planned_start_s: float
    policy: str
    currency: str
    unit: str
    cost_now: float | None = None
    cost_planned: float | None = None
    cost_deviation: float | None = None
    signal_now: float | None = None
    signal_planned: float | None = None
    predicted_s: float | None = None
    held_s: float = 0.0
    held_since_s: float | None = None
    hold_end_s: float | None = None
    eligible_again_s: float | None = None
    suspensions: int = 0

    def is_of(self, job_id: int, submit_s: float) -> bool:
        """Return whether this record of a deferral is about a given job.

        The submission time is compared too, because Slurm may have reused the job id for another job.
        """
        return self.job_id == job_id and abs(self.submit_s - submit_s) <= _SAME_SUBMIT_S

    def total_held_s(self, now_s: float) -> float:
        """Return the total time for which the job has been held, in seconds.

        The time before the job could have started without deferral does not count, for example the time
        before a begin time that the user requested.
        """
        if self.held_since_s is None:
            return self.held_s
        return self.held_s + max(0.0, now_s - max(self.held_since_s, self.eligible_s))

    def waiting_since_s(self, now_s: float) -> float:
        """Return the time from which the waiting time of a deferred job counts.

        Times in which deferral held the job do not count. The result is therefore the time at which the job
        could have started, plus the total duration of these holds. If the user held the job or moved its
        begin time after these holds, the waiting time counts from the time at which the job could start
        again, as for other jobs.
        """
        since_s = self.eligible_s + self.total_held_s(now_s)
        return since_s if self.eligible_again_s is None else max(since_s, self.eligible_again_s)

    def end_hold(self, now_s: float) -> None:
        """Record that the hold of the job has ended, and add its duration to the time held."""
        self.held_s, self.held_since_s = self.total_held_s(now_s), None
        self.hold_end_s = now_s

    def to_json(self) -> dict[str, Any]:
        """Return the job's deferral (plan, costs, hold) for the response to `GET /v1/priority`."""
        facts = dataclasses.asdict(self)
        for key in ("job_id", "submit_s", *_NOT_SHOWN):
            del facts[key]
        return facts | {"held": self.held_since_s is not None}

    def decision(self) -> Decision:
        """Return the entry of the audit trail which states that the job was deferred, and why."""
        details = self.to_json()
        del details["held"]
        why = f"deferred by {self.policy}: a later start within its slack is expected to be better"
        return Decision(self.job_id, self.submit_s, self.since_s, DEFER, why, details)

    def release_decision(self, now_s: float, why: str) -> Decision:
        """Return the entry of the audit trail which states that a deferred job is no longer held.

        Args:
            now_s: time of the release in Unix seconds.
            why: reason for the release.
        """
        details = {"planned_start_s": self.planned_start_s, "held_s": self.total_held_s(now_s)}
        return Decision(self.job_id, self.submit_s, now_s, RELEASE, why, details)


def restored_jobs(decisions: list[Decision]) -> dict[int, DeferredJob]:
    """Return the deferred jobs of an earlier process by job id, read from its audit trail.

    The entries must be in the order of time, oldest first. Entries that another release of this software
    wrote in another form are left out.
    """
    jobs: dict[int, DeferredJob] = {}
    names = {field.name for field in dataclasses.fields(DeferredJob)}
    for one in decisions:
        if one.kind == DEFER:
            facts = {key: value for key, value in one.details.items() if key in names}
            try:
                job = DeferredJob(job_id=one.job_id, submit_s=one.submit, **facts)
            except TypeError:
                continue
            job.held_since_s = job.since_s
            jobs[one.job_id] = job
        elif one.kind == RELEASE and (known := jobs.get(one.job_id)) and known.is_of(one.job_id, one.submit):
            known.end_hold(one.time)
    return jobs
