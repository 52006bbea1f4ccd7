"""Policy `aurachronos`, which ranks jobs with a deadline first, and preempts jobs for them.

All other jobs are ranked by their energy-delay product, the smallest first.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import (
    Options,
    Ranking,
    Term,
    chosen,
    edp_term,
    in_time,
    least,
    ranked,
    slack_s,
)
from slurm_energy.scheduling.registry import register


@register("aurachronos", preempts=True)
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank the jobs with a deadline first, by slack. Rank the other jobs as the policy Zeus does.

    A shape is one way to run a job. T and P are the time and the power of the job in a shape. A smaller
    score ranks first:

    - job with a deadline: score = (0, deadline - (now + min T)); it runs in its fastest shape.
    - other job: score = (1, min(P T^2) / (1 + W_age (now - submit))).

    A job with a deadline waits if every free shape is too slow for the deadline and a shape that is not free
    is fast enough. `slurm_energy.scheduling.preemption` selects the jobs to preempt. Source: thesis, 5.4.3,
    Algorithm 7.
    """
    table, urgent = queue.alternatives, queue.jobs.urgent
    fastest, _ = least(np.where(in_time(queue), table.time_s, np.inf), table)
    leanest, edp = least(table.edp, table)
    slack = slack_s(queue, chosen(table.time_s, fastest))
    ageing = 1.0 + options.age_weight * queue.wait_s
    terms = {
        "slack": Term(slack, "s", -1.0),
        "edp": edp_term(np.where(urgent, np.nan, edp)),
        "ageing": Term(np.where(urgent, np.nan, ageing), power=-1.0),
    }
    score = np.where(urgent, slack, edp / ageing)
    choice = np.where(urgent, fastest, leanest)
    return ranked(queue, options, choice, score, urgent_first=True, terms=terms)
