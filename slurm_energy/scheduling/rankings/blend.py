"""Scheduling policy `blend`, which ranks jobs by a weighted sum of four factors.

The factors are energy efficiency, fairness, urgency of the deadline, and age.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.scheduling.fairness import fair_share_factor
from slurm_energy.scheduling.queue import Floats, Queue
from slurm_energy.scheduling.ranking import Options, Ranking, Term, least, minus_sum, ranked, slack_s
from slurm_energy.scheduling.registry import register

_WEIGHTS = {"edp": 1.0, "fair": 0.5, "deadline": 2.0, "age": 0.5}


@register("blend", weights=_WEIGHTS)
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank jobs by the weighted sum of four factors from 0 to 1; the highest sum goes first.

    The sum is w_edp F_edp + w_fair F_fair + w_deadline F_deadline + w_age F_age. The factors are:

    - F_edp = M / (M + EDP). EDP is the energy-delay product of the job's most efficient shape
      (choice of resources). M is the median EDP of the queue.
    - F_fair = 2^(-U/S). U is the user's fraction of the consumed energy. S is the user's fraction
      of the shares.
    - F_deadline = T / (T + slack). T is the run time. The slack is the time from the end of the
      job to its deadline if the job starts now. The factor is 0 without deadline and 1 without slack.
    - F_age = wait / bound on waiting.

    Weights: `edp`, `fair`, `deadline`, `age`.
    """
    table, jobs = queue.alternatives, queue.jobs
    fastest, time_s = least(table.time_s, table)
    leanest, edp = least(table.edp, table)
    slack = slack_s(queue, time_s)
    choice = np.where(jobs.urgent & (slack < time_s), fastest, leanest)
    factors = {
        "edp": _edp_factor(edp),
        "fair": fair_share_factor(queue.users.energy_joules, queue.users)[jobs.user],
        "deadline": _deadline_factor(time_s, slack),
        "age": np.minimum(1.0, queue.wait_s / options.wait_bound_s),
    }
    terms = {name: Term(value, "", options.weight(name, _WEIGHTS[name])) for name, value in factors.items()}
    return ranked(queue, options, choice, minus_sum(terms), terms=terms)


def _edp_factor(edp: Floats) -> Floats:
    """Return the energy-delay factor M / (M + EDP) of each job for the policy's score.

    EDP is the energy-delay product of the job. M is the median of the finite energy-delay products.
    """
    finite = edp[np.isfinite(edp)]
    if len(finite) == 0:
        return np.zeros(len(edp))
    middle = max(float(np.median(finite)), np.finfo(np.float64).tiny)
    factor: Floats = middle / (middle + edp)
    return factor


def _deadline_factor(time_s: Floats, slack: Floats) -> Floats:
    """Return T / (T + slack) for each job: 0 without deadline, 1 without slack, shape (n,).

    Args:
        time_s: run times T in seconds, shape (n,).
        slack: seconds between the earliest end and the deadline, shape (n,); NaN without a deadline.
    """
    slack_left = np.maximum(0.0, slack)
    with np.errstate(invalid="ignore"):
        factor: Floats = np.nan_to_num(time_s / (time_s + slack_left), nan=0.0)
    return factor
