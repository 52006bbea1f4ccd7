"""Licenses of pending jobs that need more power than a budget can ever free."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from slurm_energy.budget.job_licenses import feasible_watts
from slurm_energy.budget.power_table import ANY_PARTITION, PartitionPower
from slurm_energy.controller.budgets.licenses import BudgetHeadroom
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns


def feasible_licenses(
    queue: QueueColumns,
    wanted: Ints,
    least_watts: Floats,
    budgets: Mapping[str, BudgetHeadroom | None],
    names_of: Callable[[int], Sequence[str]],
    held: Mapping[int, int],
    powers: Mapping[str, PartitionPower],
) -> Ints:
    """Return the number of power licenses of each job. One license stands for one watt of a budget.

    A pending job may need more power than one of its budgets can ever free. The number of licenses of such a
    job is reduced (see the function `feasible_watts`), so that the job can start. A budget that counts only
    jobs also counts the idle power of the job's devices, for which the job has no licenses.

    Args:
        queue: the jobs.
        wanted: power that each job adds, shape (n,).
        least_watts: power below which a job does not start, shape (n,).
        budgets: budgets by license; None means that no budget has this license.
        names_of: function that returns the names of the licenses of the job in a row of the queue.
        held: number of licenses of each running job, by job id.
        powers: power of each partition, including the key `ANY_PARTITION`.
    """
    held_watts = dict.fromkeys(budgets, 0.0)
    for row in np.flatnonzero(queue.state != PENDING).tolist():
        for name in names_of(row):
            held_watts[name] += held.get(int(queue.job_id[row]), 0)
    max_watts = {name: _max_watts(budget, held_watts[name]) for name, budget in budgets.items()}
    of_jobs = {name for name, one in budgets.items() if one is not None and not one.scope.covers_nodes}
    lowest = min(max_watts.values(), default=math.inf)
    result = wanted.copy()
    for row in np.flatnonzero((queue.state == PENDING) & (wanted > lowest)).tolist():
        slowdown = "ENERGY_SLOWDOWN" in queue.flags[row]
        idle_watts = _idle_watts(queue, row, powers)
        available = min(max_watts[name] - (idle_watts if name in of_jobs else 0.0) for name in names_of(row))
        result[row] = feasible_watts(int(wanted[row]), available, slowdown, float(least_watts[row]))
    return result


def _idle_watts(queue: QueueColumns, row: int, powers: Mapping[str, PartitionPower]) -> float:
    """Return the idle power of the devices that a job requests, the highest of all its partitions."""
    cpus, gpus = int(max(queue.cpus[row], queue.held_cpus[row])), int(queue.gpus[row])
    names = queue.partition[row].split(",")
    return max(powers.get(name, powers[ANY_PARTITION]).idle_watts(cpus, gpus) for name in names)


def _max_watts(budget: BudgetHeadroom | None, held_watts: float) -> float:
    """Return the power that a budget can free for one job in the next 24 hours.

    Args:
        budget: the budget; None means that there is no limit.
        held_watts: licenses of the running jobs under the budget.
    """
    if budget is None or not math.isfinite(budget.headroom_watts):
        return math.inf
    rise = max([0.0, *(watts - budget.limit_watts for _, watts in budget.steps)])
    most = max(0.0, budget.headroom_watts) + held_watts
    return min(most, budget.limit_watts - budget.idle_watts) + rise
