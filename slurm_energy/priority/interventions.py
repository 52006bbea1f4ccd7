"""What was changed about jobs, as far as later cycles must know it. Plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from slurm_energy.accounting.decisions import REQUEUE, SHAPE, Decision
from slurm_energy.errors import UsageError
from slurm_energy.policies.shapes import GpuShape, parse_shapes

K = TypeVar("K")
SPARED_S: Final = 1800.0
"""A job that made way is not asked again for so long, twice as long each further time, nor is one that Slurm
would not requeue."""
LONGEST_SPARED_S: Final = 30 * 86400.0
AWAY_S: Final = 86400.0
"""So long a job may be out of the queue, completing or suspended, before what it was given is forgotten."""


@dataclass(frozen=True, slots=True)
class Given:
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
    asked: str = ""
    excluded: str = ""


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
    given: dict[int, Given] = field(default_factory=dict)
    doubts: dict[tuple[int, GpuShape], float] = field(default_factory=dict)
    spared: dict[int, float] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)
    waiting: dict[int, float] = field(default_factory=dict)
    turns: dict[int, float] = field(default_factory=dict)
    made_way: dict[int, int] = field(default_factory=dict)
    unsaved: list[Decision] = field(default_factory=list)
    _seen: dict[int, float] = field(default_factory=dict)
    _now_s: float = 0.0

    def load(self, made: Iterable[Decision]) -> None:
        """Take over what was decided before this process began."""
        self.loaded = True
        for one in made:
            if one.kind == REQUEUE:
                self.interrupted(one.job_id, one.time)
            elif one.kind == SHAPE:
                asked, excluded = (str(one.details.get(key) or "") for key in ("asked", "excluded"))
                shape = _shape(one.details.get("chosen"))
                self.given[one.job_id] = Given(one.submit, shape, one.time, asked, excluded)

    def interrupted(self, job_id: int, now_s: float) -> None:
        """Note that a job made way; as it begins anew it has least to lose, and would again and again."""
        times = self.made_way[job_id] = self.made_way.get(job_id, 0) + 1
        self.spared[job_id] = now_s + min(SPARED_S * 2.0 ** min(times - 1, 30), LONGEST_SPARED_S)

    def given_to(self, job_id: int, submit_s: float, restarts: int) -> Given | None:
        """Return what a job was given; None: nothing, or it was another job of this number.

        Slurm gives a requeued job a new time of submission.
        """
        found = self.given.get(job_id)
        same = found is not None and (abs(found.submit_s - submit_s) < 1.5 or restarts > 0)
        return found if same else None

    def keeps_shape(self, job_id: int, submit_s: float, restarts: int) -> bool:
        """Return whether it turned out that a job keeps what it asked for, whatever it offers."""
        given = self.given_to(job_id, submit_s, restarts)
        return given is not None and given.shape is None

    def forget(self, now_s: float, jobs: Iterable[int]) -> None:
        """Drop what is over, and what concerns jobs that have not been among these for long.

        Not at once: a job that is requeued leaves the queue while its last run completes.
        """
        back_s, self._now_s = max(0.0, self._now_s - now_s), now_s
        _drop(self.doubts, now_s, back_s)
        for until in (self.spared, self.left, self.waiting):
            _drop(until, now_s, back_s)
        known = self.given.keys() | self.made_way.keys()
        if known:
            there = set(jobs)
            self._seen = {job: now_s if job in there else self._seen.get(job, now_s) for job in known}
            self.turns = {job: since for job, since in self.turns.items() if job in there}
            for job in [job for job, seen_s in self._seen.items() if now_s - seen_s > AWAY_S]:
                self.given.pop(job, None)
                self.made_way.pop(job, None)


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
