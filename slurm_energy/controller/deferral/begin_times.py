"""Begin times that senergyctld has moved, shared by power budgets, quotas and deferral."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class MovedBegin:
    """Begin time of a job before and after senergyctld moved it.

    Attributes:
        original_s: begin time that the user requested, before the first move; NaN means that the user
            requested no begin time.
        set_s: begin time that senergyctld set last.
        changed_s: time of the last change.
    """

    original_s: float
    set_s: float = float("nan")
    changed_s: float = float("-inf")


@dataclass(slots=True)
class BeginTimes:
    """The begin times of pending jobs that senergyctld has moved.

    Three parts of senergyctld delay jobs: power budgets, quotas and deferral. They share this object. Each
    of the three is registered as a holder of the jobs that it delays.

    Attributes:
        moved: begin times by job id.
        lock: held while begin times are changed.
    """

    moved: dict[int, MovedBegin] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _claims: dict[int, set[int]] = field(default_factory=dict)

    def claim(self, holder: int, job: int) -> None:
        """Record that a part of senergyctld holds a job.

        A part that can hold jobs (holder) is the power budgets, the quotas or the deferral.
        """
        self._claims.setdefault(job, set()).add(holder)

    def withdraw(self, holder: int, job: int) -> None:
        """Record that one of the holders of a job no longer delays it.

        The holders are the power budgets, the quotas and the deferral. If no holder delays the job any more,
        forget the job.
        """
        claims = self._claims.get(job, set())
        claims.discard(holder)
        if not claims:
            self._claims.pop(job, None)
            self.moved.pop(job, None)

    def is_held_by_others(self, holder: int, job: int) -> bool:
        """Return whether a pending job is also held by another holder than the given one.

        A holder is a part of senergyctld that delays jobs by a later begin time: the power budgets, the
        quotas or the deferral.
        """
        return bool(self._claims.get(job, set()) - {holder})

    def original_s(self, job: int, begin_s: float) -> float:
        """Return the begin time that the user of a job requested.

        Args:
            job: id of the job.
            begin_s: current begin time of the job in Slurm; NaN means that the job has no begin time.
        """
        moved = self.moved.get(job)
        return begin_s if moved is None else moved.original_s
