"""Start of queued jobs: first come, first served, with backfill that does not delay the first job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy_lab.virtual_cluster.workload import ClusterJob, partition_of


@dataclass(frozen=True, slots=True)
class JobRelease:
    """A running job in the simulated queue: its nodes, and the time at which its time limit ends.

    The queue uses it to compute when the nodes will be free at the latest.
    """

    end_s: float
    nodes: tuple[str, ...]


def start_jobs(
    queue: Sequence[ClusterJob],
    free: Mapping[str, Sequence[str]],
    releases: Iterable[JobRelease],
    now_s: float,
    start: Callable[[ClusterJob, tuple[str, ...]], bool],
) -> list[ClusterJob]:
    """Start the jobs that can start now, and return these jobs.

    In each partition, the first job that cannot start gets a reservation for the time at which enough nodes
    will be free. A later job must not delay this first job. It starts only if it ends by the reserved time,
    or leaves enough nodes free. If `start` refuses a job although its nodes are free, the job does not delay
    the jobs after it.

    Args:
        queue: waiting jobs in the order of the queue.
        free: free nodes by partition.
        releases: the running jobs.
        now_s: current time.
        start: function that starts a job on nodes and returns whether the job has started.
    """
    available = {partition: list(nodes) for partition, nodes in free.items()}
    reserved: dict[str, tuple[float, int]] = {}
    running = sorted(releases, key=lambda release: release.end_s)
    started = []
    for job in queue:
        nodes = available[job.partition]
        if job.nodes > len(nodes):
            if job.partition not in reserved:
                reserved[job.partition] = _reservation(job, nodes, running, now_s)
            continue
        if job.partition in reserved:
            shadow_s, spare = reserved[job.partition]
            if now_s + job.limit_s > shadow_s and job.nodes > spare:
                continue
        if start(job, tuple(nodes[: job.nodes])):
            started.append(job)
            if job.partition in reserved and now_s + job.limit_s > reserved[job.partition][0]:
                shadow_s, spare = reserved[job.partition]
                reserved[job.partition] = shadow_s, spare - job.nodes
            del nodes[: job.nodes]
    return started


def _reservation(
    job: ClusterJob, free: Sequence[str], running: Iterable[JobRelease], now_s: float
) -> tuple[float, int]:
    """Return the time at which enough nodes for a job will be free.

    The second result is the number of nodes of the job's partition that are then free but not needed.
    """
    count = len(free)
    for release in running:
        if partition_of(release.nodes[0]) == job.partition:
            count += len(release.nodes)
            if count >= job.nodes:
                return max(now_s, release.end_s), count - job.nodes
    return now_s, 0
