"""What was changed about jobs, as far as later cycles must know it. Plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from slurm_energy.accounting.decisions import REQUEUE, SHAPE, Decision
from slurm_energy.errors import UsageError
from slurm_energy.policies.shapes import GpuShape, parse_shapes

K = TypeVar("K")
PROTECTED_S: Final = 1800.0
"""A job that made way is not asked again for so long, twice as long each further time, nor is one that Slurm
would not requeue."""
MAX_PROTECTED_S: Final = 30 * 86400.0
ABSENCE_LIMIT_S: Final = 86400.0
"""So long a job may be out of the queue, completing or suspended, before what it was given is forgotten."""


@dataclass(frozen=True, slots=True)
class AssignedShape:
    """A shape that a job was given.

    Attributes:
        submit_s: when the job was submitted.
        shape: what it has now; None: what it asked for.
        since_s: Unix seconds.
        asked: generic resources that it asked for itself, as scontrol takes them.
        excluded: nodes that its owner excluded.
    """

    submit_s: float
    shape: GpuShape | None
    since_s: float
    requested_gres: str = ""
    excluded_nodes: str = ""


@dataclass(slots=True)
class InterventionState:
    """Lives from cycle to cycle and over a reload; filled from the database when senergyctld starts.

    Attributes:
        loaded: the database was asked.
        given: shapes by job.
        doubts: shapes that count as not fitting, until a Unix second.
        spared: jobs that are not to be interrupted, until a Unix second.
        left: jobs that had left the queue when they were asked about, not asked again until a Unix second.
        waiting: jobs with deadlines for which others make way, until a Unix second.
        turns: since when jobs could start in the shape that they have, Unix seconds.
        made_way: how often jobs were interrupted.
        unsaved: what was done and is not in the database yet.
    """

    loaded: bool = False
    assigned: dict[int, AssignedShape] = field(default_factory=dict)
    blocked_shapes: dict[tuple[int, GpuShape], float] = field(default_factory=dict)
    protected_until: dict[int, float] = field(default_factory=dict)
    left_queue: dict[int, float] = field(default_factory=dict)
    being_served: dict[int, float] = field(default_factory=dict)
    startable_since: dict[int, float] = field(default_factory=dict)
    interruptions: dict[int, int] = field(default_factory=dict)
    unsaved: list[Decision] = field(default_factory=list)
    _last_seen: dict[int, float] = field(default_factory=dict)
    _now_s: float = 0.0

    def load(self, made: Iterable[Decision]) -> None:
        """Take over what was decided before this process began."""
        self.loaded = True
        for one in made:
            if one.kind == REQUEUE:
                self.record_interruption(one.job_id, one.time)
            elif one.kind == SHAPE:
                requested_gres, excluded_nodes = (
                    str(one.details.get(key) or "") for key in ("requested_gres", "excluded_nodes")
                )
                shape = _shape(one.details.get("chosen"))
                self.assigned[one.job_id] = AssignedShape(
                    one.submit, shape, one.time, requested_gres, excluded_nodes
                )

    def record_interruption(self, job_id: int, now_s: float) -> None:
        """Note that a job made way; as it begins anew it has least to lose, and would again and again."""
        times = self.interruptions[job_id] = self.interruptions.get(job_id, 0) + 1
        self.protected_until[job_id] = now_s + min(PROTECTED_S * 2.0 ** min(times - 1, 30), MAX_PROTECTED_S)

    def assigned_to(self, job_id: int, submit_s: float, restarts: int) -> AssignedShape | None:
        """Return what a job was given; None: nothing, or it was another job of this number.

        Slurm gives a requeued job a new time of submission.
        """
        found = self.assigned.get(job_id)
        same = found is not None and (abs(found.submit_s - submit_s) < 1.5 or restarts > 0)
        return found if same else None

    def keeps_request(self, job_id: int, submit_s: float, restarts: int) -> bool:
        """Return whether it turned out that a job keeps what it asked for, whatever it offers."""
        assigned = self.assigned_to(job_id, submit_s, restarts)
        return assigned is not None and assigned.shape is None

    def expire(self, now_s: float, jobs: Iterable[int]) -> None:
        """Drop what is over, and what concerns jobs that have not been among these for long.

        Not at once: a job that is requeued leaves the queue while its last run completes.
        """
        back_s, self._now_s = max(0.0, self._now_s - now_s), now_s
        _drop(self.blocked_shapes, now_s, back_s)
        for until in (self.protected_until, self.left_queue, self.being_served):
            _drop(until, now_s, back_s)
        known = self.assigned.keys() | self.interruptions.keys()
        if known:
            there = set(jobs)
            self._last_seen = {
                job: now_s if job in there else self._last_seen.get(job, now_s) for job in known
            }
            self.startable_since = {job: since for job, since in self.startable_since.items() if job in there}
            for job in [job for job, seen_s in self._last_seen.items() if now_s - seen_s > ABSENCE_LIMIT_S]:
                self.assigned.pop(job, None)
                self.interruptions.pop(job, None)


def _drop(until: dict[K, float], now_s: float, back_s: float) -> None:
    """Drop what is over; where the clock was set back, go back with it."""
    for key, end in list(until.items()):
        until[key] = end - back_s
        if end - back_s <= now_s:
            del until[key]


def _shape(text: object) -> GpuShape | None:
    try:
        found = parse_shapes(text) if isinstance(text, str) else ()
    except UsageError:
        return None
    return found[0] if found else None
