"""Begin times that the users of deferrable jobs have requested. The module does not use numpy."""

from __future__ import annotations

import math
from collections.abc import Container

from slurm_energy.controller.deferral.jobs import DeferredJob

CHANGED_S = 1.0  # Slurm's times are whole seconds


class RequestedBeginTimes:
    """Begin times that users have requested for jobs that may be deferred.

    slurmctld sets the begin time of a job to the current time when its dependency is satisfied or a hold by
    its user ends. Only a begin time that was in the future when it was read therefore counts as requested by
    the user. This object remembers the requested times, also after they have passed.
    """

    def __init__(self) -> None:
        self._begin_s: dict[int, float] = {}

    def keep(self, pending: Container[int]) -> None:
        """Forget all jobs but the given pending ones."""
        self._begin_s = {job_id: begin_s for job_id, begin_s in self._begin_s.items() if job_id in pending}

    def eligible_s(
        self, job_id: int, submit_s: float, original_s: float, taken_s: float, submit_delay_s: float
    ) -> float:
        """Return the time at which a job that was not deferred yet could have started without deferral.

        The time is the submission time, or the begin time that the user requested. The job_submit module
        delays each job a little, so that the first plan can be made. That delay does not count.

        Args:
            job_id: job id of the job, the job array or the heterogeneous job.
            submit_s: submission time in Unix seconds.
            original_s: begin time, as it was before senergyctld moved it; NaN means that there is none.
            taken_s: time at which the queue was read.
            submit_delay_s: time by which the job_submit module delays a job.
        """
        future_s = taken_s + CHANGED_S
        if original_s > future_s:
            self._begin_s[job_id] = original_s
        elif self._begin_s.get(job_id, submit_s) > future_s:
            del self._begin_s[job_id]  # the user has moved it to an earlier time
        requested_s = self._begin_s.get(job_id, submit_s)
        is_delay = requested_s <= submit_s + math.ceil(submit_delay_s) + CHANGED_S
        return submit_s if is_delay else requested_s


def note_later_begin(
    job: DeferredJob, begin_s: float, now_s: float, hold_s: float, *, is_moved: bool
) -> None:
    """Take over a begin time that the user has set after the end of the hold of a deferred job.

    A begin time that a quota or a power budget has moved is not taken over, so that a hold by them does not
    shorten the waiting time of the job.

    Args:
        job: the job, which is not held by deferral.
        begin_s: begin time of the job in Slurm; NaN means that there is none.
        now_s: current time in Unix seconds.
        hold_s: maximum time by which deferral moves a begin time ahead.
        is_moved: whether a part of senergyctld has moved the begin time, or may have moved it.
    """
    if is_moved:
        job.hold_end_s = now_s if job.hold_end_s is None else max(job.hold_end_s, now_s)
        return
    moved_s = math.inf if job.hold_end_s is None else job.hold_end_s + hold_s
    # No part of senergyctld has moved the begin time: the user held the job, or moved its begin.
    if begin_s > moved_s + CHANGED_S:
        job.eligible_again_s = begin_s
