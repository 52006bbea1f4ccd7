"""Policy `hades`: fair shares of energy (the heuristic Hades of the thesis)."""

from __future__ import annotations

from slurm_energy.scheduling.fairness import usage_to_share_ratio
from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, edp_term, least, ranked
from slurm_energy.scheduling.registry import register

_JOULES_PER_UNIT = 1000.0
"""Joules per unit of C_u: a GPU uses about 1 kJ in the few GPU seconds that Themis counts as one unit."""


@register("hades")
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank the jobs by their energy-delay product, weighted by the past energy of their users.

    A lower score is better: score = min(P T^2) (C_u + 1). P is the power and T is the run time of the job.
    C_u is the energy that the user has used, divided by the user's fair share, in kJ.

    Source: aim stated in the thesis, 5.4.3. The formula printed there (Algorithm 9) divides by C_u + 1 and
    so puts the heaviest user first; benchmarks/thesis/printed_rankings.py has that formula.
    """
    choice, edp = least(queue.alternatives.edp, queue.alternatives)
    usage = usage_to_share_ratio(queue.users.energy_joules / _JOULES_PER_UNIT, queue.users)[queue.jobs.user]
    terms = {"edp": edp_term(edp), "usage": Term(usage + 1.0, power=1.0)}
    return ranked(queue, options, choice, edp * (usage + 1.0), terms=terms)
