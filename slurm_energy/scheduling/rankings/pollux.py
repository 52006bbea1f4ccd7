"""Scheduling policy `pollux`: the job with the shortest predicted time goes first.

This is the heuristic Pollux of the thesis, which maximises the throughput.
"""

from __future__ import annotations

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, ranked
from slurm_energy.scheduling.registry import register


@register("pollux")
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank the jobs by the shortest predicted time over all shapes, with ageing.

    A shape is one way to run a job. A lower score is better: score = min T - W_age (now - submit). T is the
    predicted run time in a shape, and W_age is the weight of the waiting time.

    Source: thesis, 5.4.1, Algorithm 3.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    wait_s = queue.wait_s
    terms = {"time": Term(time_s, "s", -1.0), "wait": Term(wait_s, "s", options.age_weight)}
    return ranked(queue, options, choice, time_s - options.age_weight * wait_s, terms=terms)
