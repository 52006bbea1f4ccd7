"""Policy `pollux`: throughput first (the heuristic Pollux of the thesis)."""

from __future__ import annotations

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, ranked
from slurm_energy.scheduling.registry import register


@register("pollux")
def rank(queue: Queue, options: Options) -> Ranking:
    """Shortest predicted time over all shapes first, with ageing.

    score = min T - W_age (now - submit)
    Source: thesis, 5.4.1, Algorithm 3.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    wait_s = queue.wait_s
    terms = {"time": Term(time_s, "s", -1.0), "wait": Term(wait_s, "s", options.age_weight)}
    return ranked(queue, options, choice, time_s - options.age_weight * wait_s, terms=terms)
