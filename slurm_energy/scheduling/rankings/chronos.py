"""Deadlines first: the heuristic that the thesis calls Chronos."""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, least, ranked, slack_s
from slurm_energy.scheduling.registry import register


@register("chronos")
def rank(queue: Queue, options: Options) -> Ranking:
    """Jobs with a deadline first, the least slack before others; the rest as Pollux orders them.

    score = (0, deadline - (now + min T)) with a deadline, (1, min T - W_age (now - submit)) without
    Source: thesis, 5.4.1, Algorithm 5.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    others = time_s - options.age_weight * queue.wait_s
    score = np.where(queue.jobs.urgent, slack_s(queue, time_s), others)
    return ranked(queue, options, choice, score, urgent_first=True)
