"""Selection of running jobs to preempt for a job with a deadline.

The selected jobs are those whose preemption wastes the least energy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Running:
    """A running job that could be preempted.

    Attributes:
        job_id: number of the job.
        hardware: index of the kind of hardware that the job holds.
        gpus: number of GPUs that the job holds.
        lost_joules: energy that is wasted if the job is preempted. It is the energy used since the job's last
            checkpoint.
        preemptible: whether the job may be interrupted and requeued.
    """

    job_id: int
    hardware: int
    gpus: int
    lost_joules: float
    preemptible: bool = True


def victims(running: Iterable[Running], hardware: int, needed: int, free: int) -> Sequence[int] | None:
    """Return the jobs to preempt so that enough GPUs of one kind become free.

    Of all sufficient sets of jobs, the set that wastes the least energy is chosen. Among sets that waste
    equal energy, the set with fewer jobs is chosen. Time and memory grow with the number of jobs times the
    number of missing GPUs.

    Args:
        running: all running jobs.
        hardware: index of the kind of hardware that is needed.
        needed: number of GPUs that are needed.
        free: number of GPUs that are already free.

    Returns:
        Job ids, in order of the energy lost per freed GPU. The list is empty if enough GPUs are free. The
        result is None if preempting every candidate would not free enough GPUs.
    """
    missing = max(0, needed - free)
    candidates = [job for job in running if job.preemptible and job.hardware == hardware and job.gpus > 0]
    candidates.sort(key=lambda job: (job.lost_joules / job.gpus, job.job_id))
    if sum(job.gpus for job in candidates) < missing:
        return None
    nothing = (0.0, 0, ())
    # By amount to free, the cheapest way: joules, number of jobs, indices of the candidates.
    ways: list[tuple[float, int, tuple[int, ...]] | None] = [nothing, *([None] * missing)]
    for index, job in enumerate(candidates):
        for amount in range(missing, 0, -1):
            shorter, current = ways[max(0, amount - job.gpus)], ways[amount]
            if shorter is None:
                continue
            way = (shorter[0] + job.lost_joules, shorter[1] + 1, (*shorter[2], index))
            if current is None or way[:2] < current[:2]:
                ways[amount] = way
    best = ways[missing]
    return None if best is None else [candidates[index].job_id for index in best[2]]
