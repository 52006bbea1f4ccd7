"""Who makes way for a job that would miss its deadline: the least energy lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Running:
    """A running job that could be interrupted.

    Attributes:
        job_id: its number.
        hardware: kind of hardware.
        gpus: how many of it.
        lost_joules: energy that would have been spent in vain: since its last checkpoint.
        preemptible: it may be interrupted and put back into the queue.
    """

    job_id: int
    hardware: int
    gpus: int
    lost_joules: float
    preemptible: bool = True


def victims(running: Iterable[Running], hardware: int, needed: int, free: int) -> Sequence[int] | None:
    """Choose jobs to interrupt so that enough of a kind of hardware becomes free.

    Of all sets that suffice the one that loses the least energy; of equals the one with fewer jobs. Time and
    space grow with the number of jobs times what is missing.

    Args:
        running: all running jobs.
        hardware: the kind that is needed.
        needed: how much of it.
        free: how much is free already.

    Returns:
        Job ids, those that cost least by what they free first; empty if nothing is to be done; None if even
        all would not do.
    """
    missing = max(0, needed - free)
    candidates = [job for job in running if job.preemptible and job.hardware == hardware and job.gpus > 0]
    candidates.sort(key=lambda job: (job.lost_joules / job.gpus, job.job_id))
    if sum(job.gpus for job in candidates) < missing:
        return None
    nothing = (0.0, 0, ())
    # The cheapest way to free at least so much: joules, number of jobs, which of the candidates.
    ways: list[tuple[float, int, tuple[int, ...]] | None] = [nothing, *([None] * missing)]
    for place, job in enumerate(candidates):
        for amount in range(missing, 0, -1):
            before, known = ways[max(0, amount - job.gpus)], ways[amount]
            if before is None:
                continue
            way = (before[0] + job.lost_joules, before[1] + 1, (*before[2], place))
            if known is None or way[:2] < known[:2]:
                ways[amount] = way
    best = ways[missing]
    return None if best is None else [candidates[place].job_id for place in best[2]]
