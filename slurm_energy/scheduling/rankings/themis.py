"""Fair shares of resources: by its stated aim, and as the thesis prints it."""

from __future__ import annotations

from slurm_energy.scheduling.fairness import usage_to_share_ratio
from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, ranked
from slurm_energy.scheduling.registry import register


@register("themis")
def rank(queue: Queue, options: Options) -> Ranking:
    """Short jobs of users first who had little of their share of GPU time.

    score = min T (C_u + 1), C_u being the GPU seconds of the user per share
    Source: thesis, 5.4.1: "for equal performance, a job from a user who has consumed few resources" goes
    first. The formula printed there does the opposite, see `themis-printed`.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    had = usage_to_share_ratio(queue.users.gpu_seconds, queue.users)[queue.jobs.user]
    terms = {"time": Term(time_s, "s", power=1.0), "usage": Term(had + 1.0, power=1.0)}
    return ranked(queue, options, choice, time_s * (had + 1.0), terms=terms)


@register("themis-printed")
def rank_printed(queue: Queue, options: Options) -> Ranking:
    """The thesis' formula as printed, which puts the heaviest user first; for reproduction only.

    score = min T / (C_u + 1)
    Source: thesis, 5.4.1, Algorithm 4.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    had = queue.users.gpu_seconds[queue.jobs.user] + 1.0
    terms = {"time": Term(time_s, "s", power=1.0), "usage": Term(had, power=-1.0)}
    return ranked(queue, options, choice, time_s / had, terms=terms)
