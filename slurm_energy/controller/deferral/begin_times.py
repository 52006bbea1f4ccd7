"""Begin times of pending jobs that senergyctld has moved, shared by all parts that hold jobs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class MovedBegin:
    """Begin time of a job that was moved.

    Attributes:
        original_s: begin time before the first move, as the user requested it; NaN: none.
        set_s: begin time that was set last.
        changed_s: time at which it was set.
    """

    original_s: float
    set_s: float = float("nan")
    changed_s: float = float("-inf")


@dataclass(slots=True)
class BeginTimes:
    """The begin times of pending jobs that were moved, shared by all holders.

    Attributes:
        moved: by job id.
        lock: held while begin times are changed.
    """

    moved: dict[int, MovedBegin] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _claims: dict[int, set[int]] = field(default_factory=dict)

    def claim(self, holder: int, job: int) -> None:
        """Record that a holder holds a job."""
        self._claims.setdefault(job, set()).add(holder)

    def withdraw(self, holder: int, job: int) -> None:
        """Record that a holder no longer holds a job. A job without a holder is discarded."""
        claims = self._claims.get(job, set())
        claims.discard(holder)
        if not claims:
            self._claims.pop(job, None)
            self.moved.pop(job, None)

    def is_held_by_others(self, holder: int, job: int) -> bool:
        """Return whether another holder holds a job."""
        return bool(self._claims.get(job, set()) - {holder})

    def original_s(self, job: int, begin_s: float) -> float:
        """Return the begin time that the user of a job requested.

        Args:
            job: id of the job.
            begin_s: its current begin time in Slurm; NaN: none.
        """
        moved = self.moved.get(job)
        return begin_s if moved is None else moved.original_s
