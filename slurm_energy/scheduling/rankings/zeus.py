"""Policy `zeus`: least energy-delay product first."""

from __future__ import annotations

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, edp_term, least, ranked
from slurm_energy.scheduling.registry import register


@register("zeus")
def rank(queue: Queue, options: Options) -> Ranking:
    """Lowest predicted energy-delay product over all shapes of a job first, with ageing.

    score = min(P T^2) / (1 + W_age (now - submit))
    Source: thesis, 5.4.3, Algorithm 6.
    """
    choice, edp = least(queue.alternatives.edp, queue.alternatives)
    ageing = 1.0 + options.age_weight * queue.wait_s
    terms = {"edp": edp_term(edp), "ageing": Term(ageing, power=-1.0)}
    return ranked(queue, options, choice, edp / ageing, terms=terms)
