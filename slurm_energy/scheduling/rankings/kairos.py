"""Policy `kairos`: least energy.

A job waits for an efficient shape (way to run) instead of taking any free shape.

Jobs with a deadline wait only as long as the deadline can still be met.
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
    over_all,
    ranked,
)
from slurm_energy.scheduling.registry import register

_WEIGHTS = {"excess": 1.8, "patience": 8.0}


@register("kairos", preempts=True, weights=_WEIGHTS)
def rank(queue: Queue, options: Options) -> Ranking:
    """Order jobs as Zeus does, but let a job wait for a shape with a low energy-delay product (EDP).

    A shape is a way to run the job. A shape is good if its EDP is at most 1 + `excess` times the lowest
    EDP over all shapes of the job, whether free or not. If no good shape is free, the job waits for a
    good shape. After a wait of `patience` times its shortest run time, the job takes any free shape. A
    job with a deadline stops waiting for a good shape before it would miss its deadline. Jobs with a
    deadline go first.

    score = min(P T^2) over the good shapes, where P is power and T run time. The total wait in the queue
    is limited only by the bound on waiting.

    Weights: `excess`, `patience`.
    """
    table = queue.alternatives
    counts = np.diff(table.first)
    leanest = over_all(table.edp, table)
    allowed = (1.0 + options.weight("excess", _WEIGHTS["excess"])) * leanest
    patient_s = options.weight("patience", _WEIGHTS["patience"]) * over_all(table.time_s, table)
    meets = in_time(queue)
    any_now, _ = least(np.where(meets, table.edp, np.inf), table)
    good_now, _ = least(np.where(meets & (table.edp <= np.repeat(allowed, counts)), table.edp, np.inf), table)
    waits = (queue.wait_s < patient_s) & ~queue.jobs.urgent
    choice = np.where((good_now < 0) & ~waits, any_now, good_now)
    edp = chosen(table.edp, choice)
    terms = {"edp": edp_term(edp), "least": Term(leanest, "J s"), "patience": Term(patient_s, "s")}
    return ranked(queue, options, choice, edp, urgent_first=True, terms=terms)
