"""Fair shares of energy: by its stated aim, and as the thesis prints it."""

from __future__ import annotations

from slurm_energy.scheduling.fairness import usage_to_share_ratio
from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, edp_term, least, ranked
from slurm_energy.scheduling.registry import register

_JOULES_PER_UNIT = 1000.0
"""Energy is counted in kilojoules, about what a GPU uses in the unit of Themis, a few GPU seconds."""


@register("hades")
def rank(queue: Queue, options: Options) -> Ranking:
    """Jobs of least energy-delay product first, of users who had little of their share of energy.

    score = min(P T^2) (C_u + 1), C_u being the energy of the user per share
    Source: thesis, 5.4.3, by its aim; the formula printed there does the opposite, see `hades-printed`.
    """
    choice, edp = least(queue.alternatives.edp, queue.alternatives)
    had = usage_to_share_ratio(queue.users.energy_joules / _JOULES_PER_UNIT, queue.users)[queue.jobs.user]
    terms = {"edp": edp_term(edp), "usage": Term(had + 1.0, power=1.0)}
    return ranked(queue, options, choice, edp * (had + 1.0), terms=terms)


@register("hades-printed")
def rank_printed(queue: Queue, options: Options) -> Ranking:
    """The thesis' formula as printed, which puts the heaviest user first; for reproduction only.

    score = min(P T^2) / (C_u + 1), C_u in GPU seconds
    Source: thesis, 5.4.3, Algorithm 9.
    """
    choice, edp = least(queue.alternatives.edp, queue.alternatives)
    had = queue.users.gpu_seconds[queue.jobs.user] + 1.0
    terms = {"edp": edp_term(edp), "usage": Term(had, power=-1.0)}
    return ranked(queue, options, choice, edp / had, terms=terms)
