"""Admission: selection of the ranked jobs that start now within free resources and the power budget.

The functions have no side effects.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Alternatives, Bools, Floats, Ints
from slurm_energy.scheduling.ranking import AGED, Ranking


def fits(table: Alternatives, free: Ints) -> Bools:
    """Return the mask of the m alternatives that fit in the free resources, shape (m,).

    Args:
        table: alternatives (ways to run a job) of all jobs.
        free: number of free GPUs (or nodes, or cores) by kind of hardware.
    """
    enough: Bools = table.gpus <= free[table.hardware]
    return enough


def admit(
    ranking: Ranking,
    job_id: Ints,
    table: Alternatives,
    free: Ints,
    power_watts: Floats,
    left_watts: float = np.inf,
) -> list[int]:
    """Return the jobs that start now: in ranked order, each job that fits in the remaining resources.

    A job that does not fit is skipped. There is one exception: if the job has waited longer than the bound
    on waiting, admission ends at this job, so that the resources for it stay free. Otherwise its wait would
    not be bounded.

    Args:
        ranking: result of the policy for n jobs.
        job_id: job ids, shape (n,). Among jobs with equal scores, the lower id comes first.
        table: the alternatives of all jobs, m rows.
        free: number of free GPUs by kind of hardware; not modified.
        power_watts: power that each alternative adds to the cluster, shape (m,).
        left_watts: unused part of the power budget.

    Returns:
        Rows of the jobs that start, in order. Source: thesis, Algorithm 8.
    """
    free = free.copy()
    started: list[int] = []
    for row in ranking.order(job_id):
        choice = ranking.choice[row]
        if choice < 0:
            if ranking.tier[row] == AGED:
                break
            continue
        kind, gpus, watts = table.hardware[choice], table.gpus[choice], power_watts[choice]
        if gpus <= free[kind] and watts <= left_watts:
            free[kind] -= gpus
            left_watts -= watts
            started.append(int(row))
        elif ranking.tier[row] == AGED:
            break
    return started
