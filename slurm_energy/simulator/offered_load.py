"""Offered load of a workload, and scaling of its arrivals to another load.

The offered load is the work that arrives per second divided by the capacity of the cluster,

    load = sum of w_i / (U * span),

where w_i is the smallest product of units and predicted run time over the shapes of job i that the cluster
can run, U is the number of units of the cluster, and span is the time from the first submission to the last
one. Jobs that the cluster cannot run do not count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.workload import Workload

_MIN_SPAN_S: Final = 1e-6
"""Shorter spans are one point in time: the clocks of schedulers are coarser."""


def offered_load(work: Workload, units: Ints) -> float | None:
    """Return the offered load; None if all jobs are submitted at the same time.

    Args:
        work: the jobs.
        units: units of the cluster by kind of nodes, shape (kinds,).
    """
    span_s = float(work.submit_s[-1] - work.submit_s[0]) if work.count else 0.0
    if span_s < _MIN_SPAN_S:
        return None
    return float(np.sum(unit_seconds(work, units))) / (float(np.sum(units)) * span_s)


def unit_seconds(work: Workload, units: Ints) -> Floats:
    """Return the work w_i of each job in unit seconds, shape (n,); 0: the cluster cannot run the job."""
    if not work.count:
        return np.zeros(0)
    product = np.where(work.units <= units[work.hardware], work.units * work.predicted_time_s, np.inf)
    least: Floats = np.minimum.reduceat(product, work.first[:-1])
    return np.where(np.isfinite(least), least, 0.0)


def with_load(work: Workload, units: Ints, load: float) -> Workload:
    """Return a workload whose offered load is `load`.

    All times between submissions are multiplied by the same factor. Run times stay, and so does the time from
    a job's submission to its deadline.

    Args:
        work: the jobs.
        units: units of the cluster by kind of nodes, shape (kinds,).
        load: offered load to reach.

    Raises:
        UsageError: all jobs are submitted at the same time, or the cluster can run none.
    """
    present = offered_load(work, units)
    if present is None:
        raise UsageError("workload.load", "all jobs are submitted at the same time", "remove the key")
    if not present:
        raise UsageError("workload.load", "the cluster can run none of the jobs", "enlarge the cluster")
    begin_s = work.submit_s[0]
    submit_s = begin_s + (work.submit_s - begin_s) * (present / load)
    return replace(work, submit_s=submit_s, deadline_s=work.deadline_s + (submit_s - work.submit_s))
