"""Savings from deferring jobs instead of starting them at once, by account and user. Uses numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from slurm_energy.accounting.history.deferred_runs import DeferredRun
from slurm_energy.deferral.counterfactual import (
    FinishedJobs,
    ObservedWaits,
    costs_at_once,
    run_costs,
    typical_waits,
)
from slurm_energy.grid.series import DEFAULT_STEP_S, GridSeries
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.signals.signal_series import from_grid

WAIT_WINDOW_S: Final = 3600.0
"""Jobs submitted within this time before or after a deferred job became eligible show how long it would have
waited."""
_MAX_STEPS: Final = 50_000
_QUANTITIES: Final = {"price_per_kwh": "cost", "carbon_g_per_kwh": "co2e_g"}

Wait = tuple[str, float, float]
"""Partition, submission in Unix seconds and wait in seconds of a job that was not deferred."""


def savings_rows(
    runs: Sequence[DeferredRun], waits: Sequence[Wait], series: Mapping[str, GridSeries]
) -> list[dict[str, Any]]:
    """Return the actual costs of deferred jobs and the costs of starting them at once.

    The costs are summed by account and user.

    Args:
        runs: runs of deferred jobs.
        waits: times that jobs waited in the queue without being deferred.
        series: price and carbon intensity over time, by name of the signal.

    Returns:
        One dict for each account and user, with number of jobs, energy and mean delay of the starts. The
        values of its keys `cost` and `co2e_g` are dicts, or None if the signal has no source. Each of these
        dicts has the keys `actual`, `at_once`, `deviation` and `jobs`. `jobs` is the number of jobs with
        known amounts.
    """
    if not runs:
        return []
    _, job_of_run = np.unique([run.job for run in runs], return_inverse=True)
    first = np.unique(job_of_run, return_index=True)[1]
    jobs, start_s = _merged(runs, job_of_run, first, waits)
    groups: dict[tuple[str, str], list[int]] = {}
    for job, row in enumerate(first.tolist()):
        groups.setdefault((runs[row].account, runs[row].user), []).append(job)
    amounts = {
        key: _amounts(runs, job_of_run, jobs, series[name]) if name in series else None
        for name, key in _QUANTITIES.items()
    }
    return [
        {
            "account": account,
            "user": user,
            "jobs": len(members),
            "energy_joules": _sum_known(jobs.energy_joules[members]),
            "mean_delay_s": float(np.mean(start_s[members] - jobs.eligible_s[members])),
            **{key: None if one is None else _group(one, members) for key, one in amounts.items()},
        }
        for (account, user), members in sorted(groups.items())
    ]


def _merged(
    runs: Sequence[DeferredRun], job_of_run: Ints, first: Ints, waits: Sequence[Wait]
) -> tuple[FinishedJobs, Floats]:
    """Return one entry per deferred job, and the time of each job's first start.

    If a requeued job has several runs, the runs are merged into one.
    """
    count = len(first)
    length_s = np.array([run.end_s - run.start_s for run in runs])
    time_s = _sums(job_of_run, np.maximum(length_s, 0.0), count)
    joules = _sums(job_of_run, np.array([run.energy_joules for run in runs]), count)
    start_s = np.full(count, np.inf)
    np.minimum.at(start_s, job_of_run, [run.start_s for run in runs])
    eligible_s = np.array([runs[row].eligible_s for row in first.tolist()])
    queue_s, deviation_s = _waits_of([runs[row].partition for row in first.tolist()], eligible_s, waits)
    return FinishedJobs(eligible_s, start_s, start_s + time_s, joules, queue_s, deviation_s), start_s


def _waits_of(partitions: Sequence[str], eligible_s: Floats, waits: Sequence[Wait]) -> tuple[Floats, Floats]:
    """Return the usual wait of each job: the wait of other jobs in its partition at the same time.

    The time is the moment when the job became eligible to start. The result contains the mean and the
    standard deviation of the waits of other jobs. NaN means unknown.
    """
    queue_s, deviation_s = np.full(len(eligible_s), np.nan), np.full(len(eligible_s), np.nan)
    of_jobs, of_waits = np.array(partitions), np.array([one[0] for one in waits], np.str_)
    submit_s, wait_s = (np.array([one[at] for one in waits], np.float64) for at in (1, 2))
    for name in set(partitions):
        rows, known = np.flatnonzero(of_jobs == name), of_waits == name
        observed = ObservedWaits(submit_s[known], wait_s[known])
        queue_s[rows], deviation_s[rows] = typical_waits(observed, eligible_s[rows], WAIT_WINDOW_S)
    return queue_s, deviation_s


def _amounts(
    runs: Sequence[DeferredRun], job_of_run: Ints, jobs: FinishedJobs, series: GridSeries
) -> tuple[Floats, Floats, Floats]:
    """Return the actual amount, the expected amount and its standard deviation, for each job.

    An amount is a cost or a mass of emissions. The expected amount is the amount that the job would have
    caused if it had started at once.
    """
    start_s, end_s, joules = (
        np.array([getattr(run, name) for run in runs]) for name in ("start_s", "end_s", "energy_joules")
    )
    begin_s = float(min(np.min(start_s), np.min(jobs.eligible_s)))
    longest_s = float(np.max(jobs.end_s - jobs.start_s, initial=0.0) + np.nanmax(jobs.queue_s, initial=0.0))
    after_s = float(np.max(end_s)) + longest_s
    step_s = max(series.resolution_s or DEFAULT_STEP_S, (after_s - begin_s) / _MAX_STEPS)
    known = from_grid(series, begin_s, after_s, step_s)
    actual = _sums(job_of_run, run_costs(start_s, end_s, joules, known), len(jobs.start_s))
    at_once = costs_at_once(jobs, known)
    return actual, at_once.at_once, at_once.deviation


def _group(amounts: tuple[Floats, Floats, Floats], members: Sequence[int]) -> dict[str, Any]:
    actual, at_once, deviation = (column[members] for column in amounts)
    known = np.isfinite(actual) & np.isfinite(at_once)
    return {
        "actual": float(np.sum(actual[known])),
        "at_once": float(np.sum(at_once[known])),
        # Errors of the jobs count as fully correlated: simultaneous jobs wait in the same queue.
        "deviation": float(np.sum(deviation[known])),
        "jobs": int(np.sum(known)),
    }


def _sums(groups: Ints, values: Floats, count: int) -> Floats:
    return np.bincount(groups, values, count).astype(np.float64)


def _sum_known(values: Floats) -> float:
    return float(np.nansum(values))
