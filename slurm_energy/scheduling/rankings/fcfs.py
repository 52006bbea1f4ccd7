"""Policy `fcfs`: first come, first served."""

from __future__ import annotations

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, ranked
from slurm_energy.scheduling.registry import register


@register("fcfs")
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank jobs in the order of their submission; each job gets the shape in which it runs fastest.

    A shape is a way to run the job, with a number and kind of GPUs.

    score = submit time
    """
    choice, _ = least(queue.alternatives.time_s, queue.alternatives)
    terms = {"submit": Term(queue.jobs.submit_s, "s", -1.0)}
    return ranked(queue, options, choice, queue.jobs.submit_s, terms=terms)
