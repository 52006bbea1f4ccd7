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

    The cheapest are taken first; then those are spared that turn out not to be needed, the dearest first.

    Args:
        running: all running jobs.
        hardware: the kind that is needed.
        needed: how much of it.
        free: how much is free already.

    Returns:
        Job ids, the cheapest first; empty if nothing is to be done; None if even all would not do.
    """
    missing = needed - free
    taken: list[Running] = []
    candidates = [job for job in running if job.preemptible and job.hardware == hardware and job.gpus > 0]
    for job in sorted(candidates, key=lambda job: (job.lost_joules / job.gpus, job.job_id)):
        if missing <= 0:
            break
        taken.append(job)
        missing -= job.gpus
    if missing > 0:
        return None
    for job in sorted(taken, key=lambda job: (-job.lost_joules, job.job_id)):
        if missing + job.gpus <= 0:
            taken.remove(job)
            missing += job.gpus
    return [job.job_id for job in taken]
