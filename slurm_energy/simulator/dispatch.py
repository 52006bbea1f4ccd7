"""Which ranked jobs start now, by discipline. Decides; starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.profile import Profile
from slurm_energy.simulator.settings import Discipline


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job in the shape that the policy chose.

    Attributes:
        job, shape: rows of the workload.
        need: resources, shape (r,), see `profile`.
        limit_s: how long it is expected to hold them.
        aged: it waited longer than the bound: nobody may pass it and delay it.
    """

    job: int
    shape: int
    need: Floats
    limit_s: float
    aged: bool = False


Release = tuple[float, Floats]


def choose(
    discipline: Discipline,
    candidates: Sequence[Candidate],
    now_s: float,
    free: Floats,
    releases: Callable[[], Iterable[Release]],
) -> list[Candidate]:
    """Return the jobs that start now, in order.

    Args:
        discipline: the rule.
        candidates: pending jobs, the first to start first.
        now_s: time.
        free: free resources, shape (r,).
        releases: tells when running jobs are expected to give what back; asked only if that matters.
    """
    if discipline == Discipline.STRICT:
        return _strict(candidates, free)
    if discipline == Discipline.PACKING and not any(candidate.aged for candidate in candidates):
        return _packing(candidates, free)
    return _backfill(discipline, candidates, now_s, free, releases)


def _strict(candidates: Iterable[Candidate], free: Floats) -> list[Candidate]:
    started = []
    left = free.copy()
    for candidate in candidates:
        if (candidate.need > left).any():
            break
        left -= candidate.need
        started.append(candidate)
    return started


def _packing(candidates: Iterable[Candidate], free: Floats) -> list[Candidate]:
    started = []
    left = free.copy()
    for candidate in candidates:
        if (candidate.need <= left).all():
            left -= candidate.need
            started.append(candidate)
    return started


def _backfill(
    discipline: Discipline,
    candidates: Sequence[Candidate],
    now_s: float,
    free: Floats,
    releases: Callable[[], Iterable[Release]],
) -> list[Candidate]:
    """Start in order; those that cannot start and must not be delayed get a reservation.

    Easy reserves for the first, conservative for all, packing for those beyond the bound on waiting.
    """
    started: list[Candidate] = []
    left = free.copy()
    profile: Profile | None = None
    for candidate in candidates:
        enough = bool((candidate.need <= left).all())
        if enough and (profile is None or profile.fits_now(candidate.need, candidate.limit_s)):
            left -= candidate.need
            started.append(candidate)
            if profile is not None:
                profile.take(now_s, candidate.limit_s, candidate.need)
            continue
        if not _reserves(discipline, candidate, profile):
            continue
        if profile is None:
            ends = [(now_s + begun.limit_s, begun.need) for begun in started]
            profile = Profile(now_s, left, [*releases(), *ends])
        start_s = profile.earliest(candidate.need, candidate.limit_s)
        if start_s is not None:
            profile.take(start_s, candidate.limit_s, candidate.need)
    return started


def _reserves(discipline: Discipline, candidate: Candidate, profile: Profile | None) -> bool:
    if discipline == Discipline.CONSERVATIVE:
        return True
    if discipline == Discipline.EASY:
        return profile is None  # aged jobs come first, so that each becomes the first in time
    return candidate.aged
