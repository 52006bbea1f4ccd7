"""Policy `multifactor`: Slurm's own priority formula, for comparison."""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.fairness import fair_share_factor
from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, minus_sum, ranked
from slurm_energy.scheduling.registry import register

_WEIGHTS = {"age": 1000.0, "fairshare": 10_000.0, "jobsize": 1000.0, "partition": 1000.0, "qos": 0.0}


@register("multifactor", weights=_WEIGHTS)
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank the queue like Slurm's plugin priority/multifactor.

    The job with the highest priority goes first. The priority is a weighted sum of five factors from 0 to
    1:

    priority = sum of weight * factor - nice.

    The weights of the factors are `age`, `fairshare`, `jobsize`, `partition` and `qos`. The age factor
    grows to 1 in `max_age_s`. The fair-share factor is the classic 2^(-U/S) of consumed resources.
    Source: Slurm, multifactor priority plugin.
    """
    jobs = queue.jobs
    factors = {
        "age": np.minimum(1.0, queue.wait_s / options.max_age_s),
        "fairshare": fair_share_factor(queue.users.gpu_seconds, queue.users)[jobs.user],
        "jobsize": jobs.size,
        "partition": jobs.partition_factor,
        "qos": jobs.qos_factor,
    }
    terms = {name: Term(value, "", options.weight(name, _WEIGHTS[name])) for name, value in factors.items()}
    terms["nice"] = Term(jobs.nice, "", -1.0)
    choice, _ = least(queue.alternatives.time_s, queue.alternatives)
    return ranked(queue, options, choice, minus_sum(terms), terms=terms)
