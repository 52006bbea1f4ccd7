"""The order of Zeus under a power budget."""

from __future__ import annotations

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking
from slurm_energy.scheduling.rankings import zeus
from slurm_energy.scheduling.registry import register


@register("charon", keeps_budget=True)
def rank(queue: Queue, options: Options) -> Ranking:
    """Zeus' order; a job starts only if the cluster's power then stays within the budget.

    The budget is kept by whoever starts jobs, see `slurm_energy.scheduling.admission`.
    Source: thesis, 5.4.3, Algorithm 8.
    """
    return zeus.rank(queue, options)
