"""Admission: which ranked jobs start now, within free resources and the power budget. Pure."""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Alternatives, Bools, Floats, Ints
from slurm_energy.scheduling.ranking import AGED, Ranking


def fits(table: Alternatives, free: Ints) -> Bools:
    """Return for each alternative whether it fits in the free resources, as an array of shape (m,).

    Args:
        table: the alternatives.
        free: free GPUs (nodes, cores) by kind of hardware.
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
    """Start jobs in order as long as each fits; pass over jobs that do not.

    A job beyond the bound on waiting is not passed over: admission ends there, so that the resources it waits
    for stay free. Its wait would not be bounded otherwise.

    Args:
        ranking: result of the policy.
        job_id: shape (n,).
        table: the alternatives.
        free: free GPUs by kind of hardware; not modified.
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
