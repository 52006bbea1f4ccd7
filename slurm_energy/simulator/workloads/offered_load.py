"""Offered load of a workload, and scaling of the workload's arrivals to another load.

The offered load is the utilisation that the arriving work causes in the cluster. It assumes that the
jobs are divided among the kinds of nodes in the best way:

load = min over x of max over k of sum_i x_ik * w_ik / (U_k * span).

- x_ik is the fraction of job i that runs on nodes of kind k.
- w_ik is the work of job i on nodes of kind k: units, such as GPUs, times the predicted run
  time. If the job can run in several ways (shapes) on this kind, the smallest product counts.
- U_k is the number of units of kind k.
- span is the time from the first submission to the last one.

At a load of 1 each kind of nodes is just able to do its work. Jobs that the cluster cannot run do not
count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.workloads.workload import Workload

_MIN_SPAN_S: Final = 1e-6
"""Shorter spans are one point in time: the clocks of schedulers are coarser."""
_RATIO_STEPS: Final = 200.0
"""Jobs whose ratios of work between the kinds agree up to 1/200 are divided alike."""
_TEMPERATURES: Final = (0.3, 0.1, 0.03, 0.01, 0.003)
_ROUNDS: Final = 150


def offered_load(work: Workload, units: Ints) -> float | None:
    """Return the offered load: the utilisation of the cluster that the arriving jobs would cause.

    The jobs are divided among the kinds of nodes so that the highest utilisation of a kind is as low as
    possible. With several kinds, the result is at most 1 % above the exact value, and never below it. None
    is returned if all jobs are submitted at the same time.

    Args:
        work: workload with the jobs.
        units: units of the cluster by kind of nodes, shape (kinds,).
    """
    span_s = float(work.submit_s[-1] - work.submit_s[0]) if work.count else 0.0
    if span_s < _MIN_SPAN_S:
        return None
    return _least_utilisation(_grouped(unit_seconds(work, units)) / units) / span_s


def unit_seconds(work: Workload, units: Ints) -> Floats:
    """Return the work of each job on each kind of nodes in unit seconds, shape (n, kinds).

    The work w_ik of job i on kind k is the number of units (such as GPUs) times the predicted seconds. If a
    job has several shapes (ways to run it) on a kind, the least work counts. Infinity means that no shape of
    the job fits on nodes of this kind.
    """
    product = np.where(work.units <= units[work.hardware], work.units * work.predicted_time_s, np.inf)
    owner = np.repeat(np.arange(work.count), np.diff(work.first))
    least: Floats = np.full((work.count, len(units)), np.inf)
    np.minimum.at(least, (owner, work.hardware), product)
    return least


def _grouped(seconds: Floats) -> Floats:
    """Combine jobs into groups, and return the work of each group by kind of nodes, shape (g, kinds).

    A job has different amounts of work on different kinds of nodes. Jobs are in the same group if the
    ratios of these amounts are nearly the same. All jobs of a group can therefore be divided among the
    kinds in the same way.
    """
    runnable: Floats = seconds[np.any(np.isfinite(seconds), axis=1)]
    if not len(runnable):
        return runnable
    if runnable.shape[1] == 1:
        return np.array([[runnable.sum()]])
    ratios = np.log(runnable / runnable.min(axis=1, keepdims=True))
    steps = np.where(np.isfinite(ratios), np.round(np.minimum(ratios, 1e6) * _RATIO_STEPS), -1).astype(
        np.int64
    )
    _, group = np.unique(steps, axis=0, return_inverse=True)
    sums: Floats = np.zeros((int(group.max(initial=-1)) + 1, runnable.shape[1]))
    np.add.at(sums, group.ravel(), runnable)
    return sums


def _least_utilisation(seconds: Floats) -> float:
    """Return how low the highest utilisation among the kinds of nodes can be.

    The lowest value is reached if the work is divided optimally among the kinds of nodes. The algorithm
    gives each kind of nodes a weight, called price. The work of a group is divided among the kinds by a
    softmin of the prices. The temperature of the softmin falls from round to round. If a kind has less work
    than the kind with most work, its price falls. Each round yields a feasible division of the work, so the
    result is never below the optimum.

    Args:
        seconds: work of each group on each kind, divided by the number of units of the kind, shape (g,
            kinds). Infinity means that the group cannot run on the kind.
    """
    if not len(seconds):
        return 0.0
    finite = np.isfinite(seconds)
    work = np.where(finite, seconds, 0.0)
    cost = np.log(np.where(finite, seconds, 1.0))
    price = np.zeros(seconds.shape[1])
    usable = np.any(finite, axis=0)
    best = np.inf
    for temperature in _TEMPERATURES:
        for _ in range(_ROUNDS):
            exponent = np.where(finite, -(cost + price) / temperature, -np.inf)
            weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
            used = np.sum(work * weight / weight.sum(axis=1, keepdims=True), axis=0)
            best = min(best, float(used.max()))
            gap = np.log(np.maximum(used[usable], 1e-12 * used.max()) / used.max())
            price[usable] += 0.5 * temperature * np.maximum(gap, -5.0)
            if gap.min() > -1e-6:
                break
    return best


def with_load(work: Workload, units: Ints, load: float) -> Workload:
    """Return a workload whose submissions are spread over time such that its offered load is `load`.

    The offered load is the work of the jobs divided by the work that the cluster can do between the first
    and the last submission. All times between submissions are multiplied by the same factor. The run times
    do not change. The time from a job's submission to its deadline does not change either.

    Args:
        work: workload with the jobs.
        units: units of the cluster by kind of nodes, shape (kinds,).
        load: offered load to reach.

    Raises:
        UsageError: all jobs are submitted at the same time, or the cluster can run none of the jobs.
    """
    present = offered_load(work, units)
    if present is None:
        raise UsageError("workload.load", "all jobs are submitted at the same time", "remove the key")
    if not present:
        raise UsageError("workload.load", "the cluster can run none of the jobs", "enlarge the cluster")
    begin_s = work.submit_s[0]
    submit_s = begin_s + (work.submit_s - begin_s) * (present / load)
    return replace(work, submit_s=submit_s, deadline_s=work.deadline_s + (submit_s - work.submit_s))
