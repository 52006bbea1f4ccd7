"""Scheduling policy `chronos`, which ranks jobs with a deadline before all other jobs.

It is the heuristic Chronos of the thesis.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, ranked, slack_s
from slurm_energy.scheduling.registry import register


@register("chronos")
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank jobs with a deadline first, by slack; rank the others as the policy Pollux does.

    T is the run time of a job in one of its shapes (ways to run). Jobs with a lower score go first. Jobs
    with a deadline go before all others. The score depends on the job:

    - with a deadline: deadline - (now + min T)
    - without a deadline: min T - W_age (now - submit)

    Source: thesis, 5.4.1, Algorithm 5.
    """
    choice, time_s = least(queue.alternatives.time_s, queue.alternatives)
    urgent, slack, wait_s = queue.jobs.urgent, slack_s(queue, time_s), queue.wait_s
    score = np.where(urgent, slack, time_s - options.age_weight * wait_s)
    terms = {
        "slack": Term(slack, "s", -1.0),
        "time": Term(np.where(urgent, np.nan, time_s), "s", -1.0),
        "wait": Term(np.where(urgent, np.nan, wait_s), "s", options.age_weight),
    }
    return ranked(queue, options, choice, score, urgent_first=True, terms=terms)
