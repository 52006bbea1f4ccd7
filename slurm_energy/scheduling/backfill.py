"""Backfill: selection of the ranked jobs that start now under a scheduling discipline.

The module only selects jobs. The caller starts the selected jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slurm_energy.scheduling.availability import AvailabilityProfile
from slurm_energy.scheduling.queue import Floats


class Discipline(StrEnum):
    """Rule that decides which ranked jobs may start.

    strict: jobs start in order; no job starts before a higher-ranked job. easy: the first job that cannot
    start gets a reservation; later jobs may start if they do not delay this reservation. conservative: a job
    may start before higher-ranked jobs if the start delays none of these jobs. packing: every job that fits
    starts, at regular intervals (thesis, 5.3.2.4).
    """

    STRICT = "strict"
    EASY = "easy"
    CONSERVATIVE = "conservative"
    PACKING = "packing"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pending job with the shape (choice of resources) in which the policy wants to start it.

    Attributes:
        job: row of the job in the caller's table.
        shape: row of the shape in the caller's table.
        need: required resources if all nodes of the job are on, shape (r,), as in `availability`.
        limit_s: expected seconds for which the job holds these resources.
        aged: whether the job has waited longer than the bound on waiting. If so, no other job may delay it.
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
    """Yield the jobs that start now, in order.

    The caller must start each job before it requests the next one.

    Args:
        discipline: scheduling discipline.
        candidates: pending jobs in the order of the policy.
        now_s: current time in seconds.
        free: free resources, shape (r,), as in `availability`.
        need_now: function that returns the resources that a job takes if it starts now. The resources
            include the power of nodes that must boot. The function is called only for jobs whose GPUs, nodes
            or cores are free. None instead of a function means that no node ever has to boot.
        releases: function that returns the expected ends of running jobs and the resources that they
            release. The function is called only if a reservation is needed.
    """
    if discipline == Discipline.STRICT:
        return _strict(candidates, free, need_now)
    if discipline == Discipline.PACKING and not any(candidate.aged for candidate in candidates):
        return _packing(candidates, free, need_now)
    return _backfill(discipline, candidates, now_s, free, need_now, releases)


def _need(candidate: Candidate, left: Floats, need_now: Need) -> Floats:
    """Return the resources that a job needs if it starts now, shape (r,).

    The resources are units (such as GPUs) and power. The power that a start adds depends on which nodes
    are on. If too few units are free for the job, the power is computed as if all nodes were on.

    Args:
        candidate: pending job with the shape (possible set of resources) in which it would start.
        left: free resources, shape (r,).
        need_now: function that returns the resources that a job takes if it starts now, as in `choose`.
    """
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
    """Yield the jobs that start now, in order.

    Reserve resources for some of the jobs that cannot start.

    Under the discipline easy, the first job that cannot start gets a reservation. Under conservative, every
    job that cannot start gets a reservation. Under packing, only jobs that have waited longer than the bound
    on waiting get a reservation. The arguments are those of `choose`.
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
        if not reserves(discipline, candidate, is_first=profile is None):
            continue
        if profile is None:
            profile = AvailabilityProfile(now_s, left, releases())
        # The power to boot may be free only after other nodes are off, which the profile does not predict.
        for reserved in (need, candidate.need):
            start_s = profile.earliest(reserved, candidate.limit_s)
            if start_s is not None:
                profile.take(start_s, candidate.limit_s, reserved)
                break


def reserves(discipline: Discipline, candidate: Candidate, *, is_first: bool) -> bool:
    """Return whether a job that cannot start now gets a reservation for a later start.

    Args:
        discipline: scheduling discipline.
        candidate: pending job with the shape (way to run the job) in which it would start.
        is_first: whether no other job has got a reservation in this pass.
    """
    if discipline == Discipline.CONSERVATIVE:
        return True
    if discipline == Discipline.EASY:
        return is_first  # aged jobs come first, so that each of them becomes the first one eventually
    return discipline == Discipline.PACKING and candidate.aged
