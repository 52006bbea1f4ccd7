"""Scheduling policy `sjf`: the shortest job first."""

from __future__ import annotations

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, ranked
from slurm_energy.scheduling.registry import register


@register("sjf")
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank the jobs by their shortest predicted time T, over all shapes (ways to run the job).

    score = min T

    Each job runs in its fastest possible shape. Waiting does not improve the score. Only the general bound
    on waiting applies.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    return ranked(queue, options, choice, time_s, terms={"time": Term(time_s, "s", -1.0)})
