"""Cost and emissions in a simulation, of each job and of the cluster.

Cost and emissions are computed from the actual values of the signals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.scheduling.queue import Floats
from slurm_energy.signals import SignalName
from slurm_energy.signals.feed import SignalFeed
from slurm_energy.signals.signal_series import SignalSeries
from slurm_energy.simulator.results.simulation_result import SimulationResult


@dataclass(frozen=True, slots=True)
class SignalCosts:
    """Cost of the energy of a simulation, or its emissions in grams.

    Attributes:
        jobs: cost or emissions of each job's energy, shape (n,). NaN if the price or carbon intensity is
            unknown for a part of the job's run time.
        cluster: cost or emissions of all energy, including idle nodes; NaN if unknown.
    """

    jobs: Floats
    cluster: float


def signal_costs(result: SimulationResult, feed: SignalFeed | None, name: SignalName) -> SignalCosts | None:
    """Return the cost of the jobs and of the cluster, or their emissions.

    If `name` is the price, the result is the cost. If `name` is the carbon intensity, the result is the
    emissions.

    Return None if the signal has no source. Cost and emissions include the PUE where the outside temperature
    is known.
    """
    series = None if feed is None else feed.actual(name)
    if feed is None or series is None:
        return None
    series = _with_pue(series, feed)
    job, start_s, end_s, watts = _segments(result)
    values = watts * _between(series, start_s, end_s) / JOULES_PER_KWH
    jobs: Floats = np.bincount(job, values, result.workload.count).astype(np.float64)
    times_s, power = result.power
    steps = power[: len(times_s) - 1] * _between(series, times_s[:-1], times_s[1:]) / JOULES_PER_KWH
    return SignalCosts(jobs, float(np.sum(steps)))


def _with_pue(series: SignalSeries, feed: SignalFeed) -> SignalSeries:
    """Convert a price or carbon intensity per kWh of the site to one per kWh of the computers.

    The values are multiplied by the power usage effectiveness (PUE).
    """
    outside = feed.actual(SignalName.OUTSIDE)
    if outside is None:
        return series
    starts = series.start_s + series.step_s * np.arange(len(series.values) + 1)
    factor = feed.pue.pue(outside.means(starts))
    values = series.values * np.where(np.isnan(factor), 1.0, factor)
    return SignalSeries(series.start_s, series.step_s, values, series.source)


def _between(series: SignalSeries, start_s: Floats, end_s: Floats) -> Floats:
    """Return the integral of a signal over each interval from `start_s` to `end_s`.

    The integral is NaN if the signal is unknown in a part of the interval.
    """
    known = SignalSeries(series.start_s, series.step_s, np.isfinite(series.values).astype(np.float64))
    known_s = known.integral(end_s) - known.integral(start_s)
    integral = series.integral(end_s) - series.integral(start_s)
    return np.where(known_s >= (end_s - start_s) * (1 - 1e-9) - 1e-6, integral, np.nan)


def _segments(result: SimulationResult) -> tuple[np.ndarray, Floats, Floats, Floats]:
    """Return the intervals in which jobs drew power in a simulation.

    The result is four arrays: job, start, end and watts of each interval.
    """
    if result.segments is not None:
        return result.segments
    # Without recorded segments no job was interrupted, and each drew a constant power until its end.
    accounts = result.accounts
    ran = np.flatnonzero(accounts.energy_joules > 0)
    start_s = accounts.start_s[ran]
    end_s = start_s + accounts.run_s[ran]
    return ran, start_s, end_s, accounts.energy_joules[ran] / np.maximum(1e-9, end_s - start_s)
