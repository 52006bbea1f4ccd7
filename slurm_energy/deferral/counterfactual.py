"""How much cost or emissions the deferral of jobs has saved, with the uncertainty of this saving.

The actual run of each job is compared with a run that starts at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.scheduling.queue import Bools, Floats
from slurm_energy.signals.signal_series import SignalSeries


@dataclass(frozen=True, slots=True)
class FinishedJobs:
    """Table of deferred jobs that have finished; each column has shape (n,).

    Attributes:
        eligible_s: time at which the job could have started without deferral.
        start_s, end_s: start and end of the job's actual run.
        energy_joules: energy of the job.
        queue_s: time for which the job would have waited for resources, counted from `eligible_s`; NaN if
            unknown.
        queue_deviation_s: standard deviation of `queue_s`; NaN counts as 0.
    """

    eligible_s: Floats
    start_s: Floats
    end_s: Floats
    energy_joules: Floats
    queue_s: Floats
    queue_deviation_s: Floats


@dataclass(frozen=True, slots=True)
class CounterfactualCosts:
    """Actual costs of jobs, and their costs if they had run at once; columns have shape (n,).

    Attributes:
        actual: cost or emissions of the actual run. NaN if the signal is unknown for a part of the run.
        at_once: expected cost or emissions of the same run if it had started at `eligible_s`, after the wait
            for resources; NaN if unknown.
        deviation: standard deviation of `at_once`.
    """

    actual: Floats
    at_once: Floats
    deviation: Floats

    @property
    def known(self) -> Bools:
        """Return the mask of the jobs whose saving from deferral is known.

        The saving is known if the actual cost and the cost of an immediate start are both known.
        """
        known: Bools = np.isfinite(self.actual) & np.isfinite(self.at_once)
        return known

    @property
    def saving(self) -> float:
        """Total saving by deferral of all jobs with known costs; negative if deferral cost more."""
        return float(np.sum((self.at_once - self.actual)[self.known]))

    @property
    def saving_deviation(self) -> float:
        """Return the standard deviation of `saving`.

        The errors of all jobs are assumed to be fully correlated, because jobs of the same time wait in the
        same queue.
        """
        return float(np.sum(self.deviation[self.known]))


@dataclass(frozen=True, slots=True)
class ObservedWaits:
    """Waits of jobs that were not deferred; columns have shape (n,).

    Attributes:
        submit_s: time of submission.
        wait_s: time from the submission to the start.
    """

    submit_s: Floats
    wait_s: Floats


_POINTS = np.array([-1.0, 0.0, 1.0]) * np.sqrt(3.0)
_WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6.0
"""Points and weights of the Gauss-Hermite quadrature of a normal distribution, exact to the fifth degree."""


def costs_at_once(jobs: FinishedJobs, series: SignalSeries) -> CounterfactualCosts:
    """Return what finished, deferred jobs would have cost if they had not been deferred.

    A job that is not deferred would still have waited for resources for an unknown time. Its start is
    therefore uncertain. The expected cost and its standard deviation are computed over the distribution of
    the wait, which is never negative. The job is assumed to run with the same duration and mean power as in
    the actual run.

    Args:
        jobs: finished jobs that were deferred. A job without a known wait is assumed to start at once.
        series: actual price per kWh, or grams per kWh.

    Raises:
        UsageError: a job ends before it starts.
    """
    time_s = jobs.end_s - jobs.start_s
    if np.any(time_s < 0):
        raise UsageError("counterfactual", "a job ends before it starts")
    kwh = jobs.energy_joules / JOULES_PER_KWH
    actual = run_costs(jobs.start_s, jobs.end_s, jobs.energy_joules, series)
    wait_s, spread_s = np.nan_to_num(jobs.queue_s), np.nan_to_num(jobs.queue_deviation_s)
    starts = jobs.eligible_s + np.maximum(0.0, wait_s + _POINTS[:, None] * spread_s)
    costs = kwh * _mean(series, starts, np.broadcast_to(time_s, starts.shape))
    expected = _WEIGHTS @ costs
    return CounterfactualCosts(actual, expected, np.sqrt(_WEIGHTS @ np.square(costs - expected)))


def typical_waits(waits: ObservedWaits, times_s: Floats, window_s: float) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of waits.

    Only jobs that were submitted near the given times count.

    Args:
        waits: jobs that were not deferred, with their waits.
        times_s: the times, shape (m,).
        window_s: maximum distance in seconds between a submission and the given time.

    Returns:
        Mean and standard deviation in seconds, each of shape (m,). NaN where no job was submitted near the
        time.
    """
    order = np.argsort(waits.submit_s, kind="stable")
    submit_s, wait_s = waits.submit_s[order], waits.wait_s[order]
    first = np.searchsorted(submit_s, times_s - window_s, side="left")
    after = np.searchsorted(submit_s, times_s + window_s, side="right")
    count = np.where(after > first, after - first, np.nan)
    sums = [np.concatenate([[0.0], np.cumsum(values)]) for values in (wait_s, np.square(wait_s))]
    mean, square = ((total[after] - total[first]) / count for total in sums)
    return mean, np.sqrt(np.maximum(square - np.square(mean), 0.0))


def run_costs(start_s: Floats, end_s: Floats, energy_joules: Floats, series: SignalSeries) -> Floats:
    """Return the cost or the emissions of runs, computed from the price or the carbon intensity.

    The value of a run is NaN if the price or the carbon intensity is unknown for a part of the run.
    """
    return energy_joules / JOULES_PER_KWH * _mean(series, start_s, end_s - start_s)


def _mean(series: SignalSeries, start_s: Floats, time_s: Floats) -> Floats:
    """Return the mean of a signal during each run; NaN if the signal is unknown for a part of the run."""
    known = SignalSeries(series.start_s, series.step_s, np.isfinite(series.values).astype(np.float64))
    end_s = start_s + np.maximum(time_s, 1e-3)
    length_s = end_s - start_s
    known_s = known.integral(end_s) - known.integral(start_s)
    mean = (series.integral(end_s) - series.integral(start_s)) / length_s
    return np.where(known_s >= length_s * (1 - 1e-6) - 1e-6, mean, np.nan)
