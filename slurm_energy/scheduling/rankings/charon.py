"""Policy `charon`: the order of the policy `zeus`, under a power budget."""

from __future__ import annotations

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking
from slurm_energy.scheduling.rankings import zeus
from slurm_energy.scheduling.registry import register


@register("charon", keeps_budget=True)
def rank(queue: Queue, options: Options) -> Ranking:
    """Order of policy `zeus`; a job starts only if the cluster's power stays within the budget.

    This function does not enforce the budget. The code that starts jobs does, see
    `slurm_energy.scheduling.admission`.

    Source: thesis, 5.4.3, Algorithm 8.
    """
    return zeus.rank(queue, options)
