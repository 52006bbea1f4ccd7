"""Order in which the lab's waiting jobs start, according to a scheduling policy of the product.

The module also computes the waits of the jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slurm_energy.scheduling import Options, Queue, policy
from slurm_energy.scheduling.queue import alternatives
from slurm_energy.scheduling.queue import jobs as jobs_table
from slurm_energy_lab.model import NodeProfile
from slurm_energy_lab.virtual_cluster.cluster import QueueOrder
from slurm_energy_lab.virtual_cluster.program_history import ProgramHistory
from slurm_energy_lab.virtual_cluster.workload import USERS, ClusterJob


def priority_order(
    profiles: Mapping[str, NodeProfile], history: ProgramHistory, policy_name: str, bound_s: float
) -> QueueOrder:
    """Return a function that orders a queue by a scheduling policy of slurm-energy.

    The policy uses power that is predicted from earlier runs of the program. The time limit of a job serves
    as its predicted run time, because the jobs of a program differ in length.

    Args:
        profiles: hardware by partition.
        history: records of the programs.
        policy_name: scheduling policy.
        bound_s: bound on waiting in seconds.
    """
    ranking = policy(policy_name)
    settings = Options(wait_bound_s=bound_s)

    def watts(job: ClusterJob) -> float:
        profile = profiles[job.partition]
        record = history.record(profile, job.partition, job.program)
        gpus = profile.gpu.count * record.mean_watts if profile.gpu and job.partition == "gpu" else 0.0
        return job.nodes * (profile.cpu.packages * record.package_watts + gpus)

    def order(queue: Sequence[ClusterJob], now_s: float) -> list[ClusterJob]:
        ids = np.array([job.job_id for job in queue], np.int64)
        table = jobs_table(
            ids, np.array([job.submit_s for job in queue]), owner=np.array([job.uid for job in queue])
        )
        shapes = alternatives(
            np.arange(len(queue) + 1),
            np.array([job.limit_s for job in queue]),
            np.array([watts(job) for job in queue]),
            gpus=np.array([job.nodes for job in queue], np.int64),
        )
        rows = ranking.rank(Queue(now_s, table, shapes), settings).order(ids)
        return [queue[row] for row in rows.tolist()]

    return order


def waits_of(waits_s: Mapping[int, float]) -> tuple[float, float, float]:
    """Return mean and maximum wait, and the largest mean wait of a user divided by the smallest.

    Args:
        waits_s: waits by job id. The user of a job is its id modulo the number of users.
    """
    by_user: dict[int, list[float]] = {}
    for job_id, wait_s in waits_s.items():
        by_user.setdefault(job_id % USERS, []).append(wait_s)
    means = [sum(waits) / len(waits) for waits in by_user.values()]
    return sum(waits_s.values()) / len(waits_s), max(waits_s.values()), max(means) / max(1.0, min(means))
