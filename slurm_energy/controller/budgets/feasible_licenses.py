"""Licenses of pending jobs that need more power than a budget can ever free."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slurm_energy.budget.job_licenses import feasible_watts
from slurm_energy.budget.power_table import PartitionPower, powers_of_partitions
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
    jobs also counts the idle power of the devices of its jobs, for which the jobs have no licenses.

    Args:
        queue: the jobs.
        wanted: power that each job adds, shape (n,).
        least_watts: power below which a job does not start, shape (n,).
        budgets: budgets by license; None means that no budget has this license.
        names_of: function that returns the names of the licenses of the job in a row of the queue.
        held: number of licenses of each running job, by job id.
        powers: power of each partition, including the key `ANY_PARTITION`.
    """
    held_watts, running_idle_watts = dict.fromkeys(budgets, 0.0), dict.fromkeys(budgets, 0.0)
    of_jobs = {name for name, one in budgets.items() if one is not None and not one.scope.covers_nodes}
    for row in np.flatnonzero(queue.state != PENDING).tolist():
        names = names_of(row)
        for name in names:
            held_watts[name] += held.get(int(queue.job_id[row]), 0)
        for name in of_jobs.intersection(names):
            running_idle_watts[name] += _idle_watts(queue, row, powers)
    freeable = {
        name: _freeable_power(budget, held_watts[name], running_idle_watts[name])
        for name, budget in budgets.items()
    }
    lowest = min((power.max_watts(0.0) for power in freeable.values()), default=math.inf)
    result = wanted.copy()
    for row in np.flatnonzero((queue.state == PENDING) & (wanted > lowest)).tolist():
        slowdown = "ENERGY_SLOWDOWN" in queue.flags[row]
        idle_watts = _idle_watts(queue, row, powers)
        available = min(
            freeable[name].max_watts(idle_watts if name in of_jobs else 0.0) for name in names_of(row)
        )
        result[row] = feasible_watts(int(wanted[row]), available, slowdown, float(least_watts[row]))
    return result


def _idle_watts(queue: QueueColumns, row: int, powers: Mapping[str, PartitionPower]) -> float:
    """Return the idle power of the devices that a job requests, the highest of all its partitions."""
    cpus, gpus = int(max(queue.cpus[row], queue.held_cpus[row])), int(queue.gpus[row])
    return max(power.idle_watts(cpus, gpus) for power in powers_of_partitions(queue.partition[row], powers))


class _FreeablePower(NamedTuple):
    """Power that a budget can free for one job in the next 24 hours.

    Attributes:
        planned_watts: headroom plus the licenses of the running jobs. senergyctld plans the starts of jobs
            with these numbers, and would therefore never start a job that needs more power.
        running_idle_watts: idle power that the budget counts because of the running jobs.
        limit_watts: power above idle that is free while no job runs.
    """

    planned_watts: float = math.inf
    running_idle_watts: float = 0.0
    limit_watts: float = math.inf

    def max_watts(self, idle_watts: float) -> float:
        """Return the power above idle that one job can get.

        Args:
            idle_watts: idle power that the budget will count because of the job.
        """
        freed_watts = self.planned_watts + self.running_idle_watts - idle_watts
        return min(self.planned_watts, freed_watts, self.limit_watts - idle_watts)


def _freeable_power(
    budget: BudgetHeadroom | None, held_watts: float, running_idle_watts: float
) -> _FreeablePower:
    """Return the power that a budget can free for one job.

    Args:
        budget: the budget; None means that there is no limit.
        held_watts: licenses of the running jobs under the budget.
        running_idle_watts: idle power that the budget counts because of the running jobs.
    """
    if budget is None or not math.isfinite(budget.headroom_watts):
        return _FreeablePower()
    rise = max([0.0, *(watts - budget.limit_watts for _, watts in budget.steps)])
    planned_watts = max(0.0, budget.headroom_watts) + held_watts + rise
    return _FreeablePower(planned_watts, running_idle_watts, budget.limit_watts - budget.idle_watts + rise)
