"""Scheduling policy `zeus`: jobs with the least energy-delay product start first."""

from __future__ import annotations

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, edp_term, least, ranked
from slurm_energy.scheduling.registry import register


@register("zeus")
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank the jobs by their lowest energy-delay product, with ageing. The lowest score is first.

    score = min(P T^2) / (1 + W_age (now - submit))

    P and T are the predicted power and time of a job in one shape (way to run the job). The minimum is over
    all shapes of the job. Source: thesis, 5.4.3, Algorithm 6.
    """
    choice, edp = least(queue.alternatives.edp, queue.alternatives)
    ageing = 1.0 + options.age_weight * queue.wait_s
    terms = {"edp": edp_term(edp), "ageing": Term(ageing, power=-1.0)}
    return ranked(queue, options, choice, edp / ageing, terms=terms)
