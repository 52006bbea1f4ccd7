"""Rankings of Themis and Hades exactly as the thesis prints them, as a site policy file.

Both printed formulas divide by the usage of the user. They therefore rank the user with the
highest usage first, which contradicts the stated aim. The product's policies `themis` and
`hades` follow the aim. The printed forms serve only the reproduction:

senergy simulate SCENARIO --policy-file benchmarks/thesis/printed_rankings.py --policies
themis-printed,themis
"""

from slurm_energy.scheduling import Options, Queue, Ranking, register
from slurm_energy.scheduling.ranking import Term, edp_term, least, ranked


@register("themis-printed")
def rank_themis(queue: Queue, options: Options) -> Ranking:
    """Themis as printed: shortest run time per GPU second that the user has consumed.

    score = min T / (C_u + 1), C_u in GPU seconds
    Source: thesis, 5.4.1, Algorithm 4.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    usage = queue.users.gpu_seconds[queue.jobs.user] + 1.0
    terms = {"time": Term(time_s, "s", power=1.0), "usage": Term(usage, power=-1.0)}
    return ranked(queue, options, choice, time_s / usage, terms=terms)


@register("hades-printed")
def rank_hades(queue: Queue, options: Options) -> Ranking:
    """Hades as printed: least energy-delay product per GPU second that the user has consumed.

    score = min(P T^2) / (C_u + 1), C_u in GPU seconds
    Source: thesis, 5.4.3, Algorithm 9.
    """
    choice, edp = least(queue.alternatives.edp, queue.alternatives)
    usage = queue.users.gpu_seconds[queue.jobs.user] + 1.0
    terms = {"edp": edp_term(edp), "usage": Term(usage, power=-1.0)}
    return ranked(queue, options, choice, edp / usage, terms=terms)
