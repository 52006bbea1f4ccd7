"""Which ranked jobs start now, by discipline. Decides; starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slurm_energy.scheduling.availability import AvailabilityProfile
from slurm_energy.scheduling.queue import Floats


class Discipline(StrEnum):
    """Which of the ranked jobs may start.

    strict: in order; nobody passes a job that cannot start.
    easy: in order; others pass the first that cannot start if they do not delay it.
    conservative: in order; others pass if they delay nobody before them.
    packing: whatever fits starts, in order, at regular intervals (thesis, 5.3.2.4).
    """

    STRICT = "strict"
    EASY = "easy"
    CONSERVATIVE = "conservative"
    PACKING = "packing"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job in the shape that the policy chose.

    Attributes:
        job, shape: rows of the workload.
        need: resources, shape (r,), see `profile`, on nodes that are on.
        limit_s: how long it is expected to hold them.
        aged: it waited longer than the bound: nobody may pass it and delay it.
    """

    job: int
    shape: int
    need: Floats
    limit_s: float
    aged: bool = False


Release = tuple[float, Floats]
Need = Callable[[Candidate], Floats] | None


def choose(
    discipline: Discipline,
    candidates: Sequence[Candidate],
    now_s: float,
    free: Floats,
    need_now: Need,
    releases: Callable[[], Iterable[Release]],
) -> Iterator[Candidate]:
    """Yield the jobs that start now, in order. The caller starts each before it asks for the next.

    Args:
        discipline: the rule.
        candidates: pending jobs, the first to start first.
        now_s: time.
        free: free resources, shape (r,).
        need_now: returns the resources that a job takes if it starts now, nodes to boot included; called
            only with jobs whose units are free. None: nothing has to boot.
        releases: returns when running jobs are expected to give what back; called only if that matters.
    """
    if discipline == Discipline.STRICT:
        return _strict(candidates, free, need_now)
    if discipline == Discipline.PACKING and not any(candidate.aged for candidate in candidates):
        return _packing(candidates, free, need_now)
    return _backfill(discipline, candidates, now_s, free, need_now, releases)


def _need(candidate: Candidate, left: Floats, need_now: Need) -> Floats:
    """Return what a job takes if it starts now; on nodes that are on if not even its units are left."""
    if need_now is None or (candidate.need[:-1] > left[:-1]).any():
        return candidate.need
    return need_now(candidate)


def _strict(candidates: Iterable[Candidate], free: Floats, need_now: Need) -> Iterator[Candidate]:
    left = free.copy()
    for candidate in candidates:
        need = _need(candidate, left, need_now)
        if (need > left).any():
            break
        left -= need
        yield candidate


def _packing(candidates: Iterable[Candidate], free: Floats, need_now: Need) -> Iterator[Candidate]:
    left = free.copy()
    for candidate in candidates:
        need = _need(candidate, left, need_now)
        if (need <= left).all():
            left -= need
            yield candidate


def _backfill(
    discipline: Discipline,
    candidates: Sequence[Candidate],
    now_s: float,
    free: Floats,
    need_now: Need,
    releases: Callable[[], Iterable[Release]],
) -> Iterator[Candidate]:
    """Start in order; those that cannot start and must not be delayed get a reservation.

    Easy reserves for the first, conservative for all, packing for those beyond the bound on waiting.
    """
    left = free.copy()
    profile: AvailabilityProfile | None = None
    for candidate in candidates:
        need = _need(candidate, left, need_now)
        if (need <= left).all() and (profile is None or profile.fits_now(need, candidate.limit_s)):
            left -= need
            yield candidate
            if profile is not None:
                profile.take(now_s, candidate.limit_s, need)
            continue
        if not _reserves(discipline, candidate, profile):
            continue
        if profile is None:
            profile = AvailabilityProfile(now_s, left, releases())
        # Power for booting may be there only once other nodes are off, which the profile does not foresee.
        for reserved in (need, candidate.need):
            start_s = profile.earliest(reserved, candidate.limit_s)
            if start_s is not None:
                profile.take(start_s, candidate.limit_s, reserved)
                break


def _reserves(discipline: Discipline, candidate: Candidate, profile: AvailabilityProfile | None) -> bool:
    if discipline == Discipline.CONSERVATIVE:
        return True
    if discipline == Discipline.EASY:
        return profile is None  # aged jobs come first, so that each becomes the first in time
    return candidate.aged
