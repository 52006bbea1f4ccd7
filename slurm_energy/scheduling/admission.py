"""Which of the ranked jobs start now: resources and the power budget, one after the other. Pure."""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Alternatives, Bools, Floats, Ints
from slurm_energy.scheduling.ranking import AGED, Ranking


def fits(table: Alternatives, free: Ints) -> Bools:
    """Return which alternatives fit into what is free.

    Args:
        table: the alternatives.
        free: free GPUs (nodes, cores) by kind of hardware.

    Returns:
        Shape (m,).
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
    """Go through the jobs in order and start those that fit; a job that does not is passed over.

    A job beyond the bound on waiting is not passed over: what it waits for is kept for it. Its wait would
    not be bounded otherwise.

    Args:
        ranking: the policy's answer.
        job_id: shape (n,).
        table: the alternatives.
        free: free GPUs by kind of hardware; not changed.
        power_watts: shape (m,), what an alternative adds to the cluster's power.
        left_watts: what is left of the budget.

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
