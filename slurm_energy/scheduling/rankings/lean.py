"""Scheduling policy `lean` for clusters under a power budget.

It ranks the jobs with the lowest predicted power per unit (GPU, node or core) first.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, ranked
from slurm_energy.scheduling.registry import register


@register("lean")
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank the jobs with the lowest predicted power per unit (GPU, node or core) first.

    Each job gets the shape (way to run the job) with the lowest power per unit. The score of a job is the
    minimum of P / units over its shapes, where P is the predicted power. The score does not change with the
    wait. Only the bound on waiting limits the wait.

    The policy is meant for a power budget that does not permit full power on all units. The jobs that need
    the least power per unit then leave the most units at full speed.
    """
    table = queue.alternatives
    choice, watts = least(table.power_watts / np.maximum(table.gpus, 1), table)
    return ranked(queue, options, choice, watts, terms={"power": Term(watts, "W", power=1.0)})
