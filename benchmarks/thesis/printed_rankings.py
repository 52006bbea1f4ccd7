"""Rankings of Themis and Hades exactly as the thesis prints them, as a site policy file.

Both printed formulas divide by the usage of the user. They therefore rank the user with the highest usage
first, which contradicts the aim that the thesis states. The policies `themis` and `hades` of slurm-energy
follow that aim. The printed forms serve only the reproduction of the thesis:

senergy simulate SCENARIO --policy-file benchmarks/thesis/printed_rankings.py --policies
themis-printed,themis
"""

from slurm_energy.scheduling import Options, Queue, Ranking, register
from slurm_energy.scheduling.ranking import Term, edp_term, least, ranked


@register("themis-printed")
def rank_themis(queue: Queue, options: Options) -> Ranking:
    """Themis as the thesis prints it: rank by run time per GPU second that the user has consumed.

    The job with the shortest run time per GPU second is first.

    score = min T / (C_u + 1); T is the run time, and C_u the user's GPU seconds

    Source: thesis, 5.4.1, Algorithm 4.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    usage = queue.users.gpu_seconds[queue.jobs.user] + 1.0
    terms = {"time": Term(time_s, "s", power=1.0), "usage": Term(usage, power=-1.0)}
    return ranked(queue, options, choice, time_s / usage, terms=terms)


@register("hades-printed")
def rank_hades(queue: Queue, options: Options) -> Ranking:
    """Rank the pending jobs by the scheduling policy Hades exactly as the thesis defines it.

    The policy ranks by the energy-delay product (EDP) per GPU second that the user has consumed. The job
    with the least value is first.

    score = min(P T^2) / (C_u + 1); P is power, T run time, and C_u the user's GPU seconds

    Source: thesis, 5.4.3, Algorithm 9.
    """
    choice, edp = least(queue.alternatives.edp, queue.alternatives)
    usage = queue.users.gpu_seconds[queue.jobs.user] + 1.0
    terms = {"edp": edp_term(edp), "usage": Term(usage, power=-1.0)}
    return ranked(queue, options, choice, edp / usage, terms=terms)
