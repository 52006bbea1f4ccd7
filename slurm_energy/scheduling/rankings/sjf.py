"""Policy `sjf`: shortest job first."""

from __future__ import annotations

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, ranked
from slurm_energy.scheduling.registry import register


@register("sjf")
def rank(queue: Queue, options: Options) -> Ranking:
    """Shortest predicted time first, each job in its fastest possible shape; no ageing except the bound.

    score = min T
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    return ranked(queue, options, choice, time_s, terms={"time": Term(time_s, "s", -1.0)})
