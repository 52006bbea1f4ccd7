"""A scheduling policy in one file: lowest energy first, with priority for urgent jobs and long waits.

senergy simulate SCENARIO --policy-file examples/my_policy.py --policies frugal,zeus
"""

import numpy as np

from slurm_energy.scheduling import Options, Queue, Ranking, register
from slurm_energy.scheduling.ranking import least, ranked


@register("frugal")
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank the job with the lowest predicted energy first; an hour of waiting halves its score.

    A shape is one way to run a job. P and T are the predicted power and time of the job in a shape. A
    lower score is better: score = min(P T) / (1 + wait / 3600), with the minimum over all shapes. If the
    job has a deadline, the score is divided by 10.
    """
    table = queue.alternatives
    choice, energy_joules = least(table.energy_joules, table)  # row of the most efficient shape of each job
    score = energy_joules / (1.0 + queue.wait_s / 3600.0)
    score = np.where(queue.jobs.urgent, score / 10.0, score)
    return ranked(queue, options, choice, score)  # lower goes first; the bound on waiting is kept
