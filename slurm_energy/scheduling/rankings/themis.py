"""Scheduling policy `themis`: fair shares of GPU time (the heuristic Themis of the thesis)."""

from __future__ import annotations

from slurm_energy.scheduling.fairness import usage_to_share_ratio
from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, ranked
from slurm_energy.scheduling.registry import register


@register("themis")
def rank(queue: Queue, options: Options) -> Ranking:
    """Shortest run time first; users who have consumed few GPU seconds are preferred.

    score = min T (C_u + 1); T is the run time. C_u are the GPU seconds of the user, divided by the user's
    share.

    Source: aim stated in the thesis, 5.4.1: "for equal performance, a job from a user who has consumed few
    resources" goes first. The formula in the thesis (Algorithm 4) divides by C_u + 1 and so ranks the
    heaviest user first. benchmarks/thesis/printed_rankings.py has this formula.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    usage = usage_to_share_ratio(queue.users.gpu_seconds, queue.users)[queue.jobs.user]
    terms = {"time": Term(time_s, "s", power=1.0), "usage": Term(usage + 1.0, power=1.0)}
    return ranked(queue, options, choice, time_s * (usage + 1.0), terms=terms)
