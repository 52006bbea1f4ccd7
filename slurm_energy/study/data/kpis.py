"""Computation of the KPI values of each day from jobs and the energy of nodes.

The functions are pure. The baseline, the replay error of the model and the validation call the same
function, so that their values are comparable. An unknown value is NaN, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_energy.grid.series import GridSeries
from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.study.data.days import HOUR_S, StudyDays, spread
from slurm_energy.study.data.jobs_table import Bools, Floats, JobsTable

MIN_COVERAGE: Final = 0.98
"""Minimum share of node-hours with known energy from which the sum over jobs counts as a day's energy."""
_MIN_RUN_S: Final = 10.0
"""Lower bound of the run time in the slowdown, so that short jobs do not dominate (bounded slowdown)."""


@dataclass(frozen=True, slots=True)
class EnergySeries:
    """Energy of all nodes in consecutive intervals, including the energy of idle nodes.

    Attributes:
        start_s, end_s: intervals in Unix seconds, shape (m,).
        joules: energy of each interval; NaN means unknown.
        source: name of the source of the energy, for example `senergyctld /v1/usage`.
    """

    start_s: Floats
    end_s: Floats
    joules: Floats
    source: str

    def between(self, begin_s: float, end_s: float) -> EnergySeries:
        """Return those intervals of the energy series that overlap the time from `begin_s` to `end_s`."""
        kept = (self.end_s > begin_s) & (self.start_s < end_s)
        return EnergySeries(self.start_s[kept], self.end_s[kept], self.joules[kept], self.source)


@dataclass(frozen=True, slots=True)
class EnergyPrices:
    """Factors over time that convert energy to cost and emissions.

    Attributes:
        price_per_kwh: price of electricity; None means unknown.
        carbon_g_per_kwh: carbon intensity of electricity; None means unknown.
        pue: power usage effectiveness of the site, by which cost and emissions are multiplied.
    """

    price_per_kwh: GridSeries | None = None
    carbon_g_per_kwh: GridSeries | None = None
    pue: float = 1.0


def _factors(series: GridSeries | None, times_s: Floats) -> Floats:
    """Return the carbon intensities or prices in a series at the given times; NaN where unknown."""
    if series is None:
        return np.full(len(times_s), np.nan)
    values = (series.at(time_s) for time_s in times_s.tolist())
    return np.array([np.nan if value is None else value for value in values])


@dataclass(frozen=True, slots=True)
class DailyKpis:
    """Values of key performance indicators (KPIs), one per day.

    Attributes:
        days: the n days.
        values: values of each KPI by its name, shape (n,); NaN means unknown.
        energy_source: source of the energy of the days.
        coverage: share of the node-hours of each day whose energy is known, shape (n,). NaN means that the
            day has no work.
    """

    days: StudyDays
    values: Mapping[str, Floats]
    energy_source: str
    coverage: Floats = field(default_factory=lambda: np.zeros(0))

    def used(self, name: str) -> Floats:
        """Return the known values of a KPI on those days that are not excluded."""
        values = self.values[name]
        kept: Floats = values[self.days.used & ~np.isnan(values)]
        return kept


def daily_kpis(
    jobs: JobsTable,
    days: StudyDays,
    energy: EnergySeries | None = None,
    prices: EnergyPrices | None = None,
) -> DailyKpis:
    """Return all KPIs of each day.

    Energy and work of a job are distributed evenly over its run. Completion times, slowdown and counts belong
    to the day on which a job ended.

    Args:
        jobs: the jobs. Jobs that have not ended count only in waiting times.
        days: days for which KPIs are computed.
        energy: energy of the nodes; None means that the energy of the jobs is used, without idle nodes.
        prices: factors for cost and emissions; None means unknown.
    """
    hours = _hour_edges(days)
    hour_day = days.day_of(hours[:-1])
    ran = jobs.where(~np.isnan(jobs.start_s) & (jobs.end_s >= jobs.start_s))
    joules, peak_watts, source, coverage = _energy(ran, days, energy, hours, hour_day)
    day_joules = _day_sums(joules, hour_day, days.count)
    kwh = day_joules / JOULES_PER_KWH
    work = spread(ran.start_s, ran.end_s, ran.work_node_hours, days.edges_s)
    ended = days.day_of(ran.end_s)
    mean_jct_s = _means(ran.completion_s, ended, days.count)
    factors = prices or EnergyPrices()
    hour_kwh = joules / JOULES_PER_KWH * factors.pue
    cost = hour_kwh * _factors(factors.price_per_kwh, hours[:-1])
    grams = hour_kwh * _factors(factors.carbon_g_per_kwh, hours[:-1])
    counts = np.bincount(ended[ended >= 0], minlength=days.count)
    values = {
        "energy_kwh": kwh,
        "energy_per_work_kwh": _energy_per_work(ran, days, kwh, work, energy is not None),
        "edp_joule_seconds": day_joules * mean_jct_s,
        "cost": _day_sums(cost, hour_day, days.count),
        "carbon_kg": _day_sums(grams, hour_day, days.count) / 1000,
        "peak_power_watts": peak_watts,
        "jobs_per_hour": counts / days.hours,
        "node_hours_per_hour": work / days.hours,
        "mean_jct_s": mean_jct_s,
        "fairness": _fairness(ran, ended, days.count),
        "worst_wait_s": _worst_waits(jobs, days),
    }
    return DailyKpis(days, values, source, coverage)


def _hour_edges(days: StudyDays) -> Floats:
    """Return the starts of all hours of the days, and the end of the last day, in Unix seconds."""
    parts = [
        np.arange(begin, end, HOUR_S) for begin, end in zip(days.edges_s[:-1], days.edges_s[1:], strict=True)
    ]
    return np.concatenate([*parts, days.edges_s[-1:]])


def _energy(
    ran: JobsTable, days: StudyDays, energy: EnergySeries | None, hours: Floats, hour_day: np.ndarray
) -> tuple[Floats, Floats, str, Floats]:
    """Return the energy of the cluster by hour and three further results.

    The further results are the peak power by day, the source of the energy, and, by day, the share of
    node-hours with known energy.
    """
    known = ~np.isnan(ran.energy_joules)
    all_hours = spread(ran.start_s, ran.end_s, ran.nodes * ran.run_s, days.edges_s)
    part = ran.where(known)
    covered = spread(part.start_s, part.end_s, part.nodes * part.run_s, days.edges_s)
    coverage = np.where(all_hours > 0, covered / np.where(all_hours > 0, all_hours, 1.0), np.nan)
    if energy is not None:
        joules = _series_hours(energy, hours)
        return joules, _series_peaks(energy, days), energy.source, coverage
    joules = spread(part.start_s, part.end_s, part.energy_joules, hours)
    joules = np.where((coverage >= MIN_COVERAGE)[hour_day], joules, np.nan)
    watts = joules / np.diff(hours)
    return joules, _day_maxima(watts, hour_day, days.count), "sum over jobs, without idle nodes", coverage


def _series_hours(energy: EnergySeries, hours: Floats) -> Floats:
    """Return the energy of each hour.

    The energy of an hour is NaN if it is unknown for a part of the hour.
    """
    known = ~np.isnan(energy.joules)
    start, end = energy.start_s[known], energy.end_s[known]
    covered = spread(start, end, end - start, hours)
    sums = spread(start, end, energy.joules[known], hours)
    complete: Floats = np.where(covered > np.diff(hours) * 0.999, sums, np.nan)
    return complete


def _series_peaks(energy: EnergySeries, days: StudyDays) -> Floats:
    length_s = energy.end_s - energy.start_s
    fine = (length_s > 0) & (length_s <= HOUR_S * 1.001)
    watts = energy.joules[fine] / length_s[fine]
    return _day_maxima(watts, days.day_of(energy.start_s[fine]), days.count)


def _day_sums(values: Floats, row: np.ndarray, count: int) -> Floats:
    """Return the sum of the values of each day; NaN if a value is unknown or the day has no value."""
    inside = row >= 0
    sums = np.bincount(row[inside], weights=values[inside], minlength=count)
    numbers = np.bincount(row[inside], minlength=count)
    known: Floats = np.where(numbers > 0, sums, np.nan)
    return known


def _day_maxima(values: Floats, row: np.ndarray, count: int) -> Floats:
    """Return the maximum of the values of each day; NaN if a value is unknown or the day has no value."""
    maxima = np.full(count, -np.inf)
    inside = row >= 0
    np.maximum.at(maxima, row[inside], np.where(np.isnan(values), np.inf, values)[inside])
    known: Floats = np.where(np.isfinite(maxima), maxima, np.nan)
    return known


def _means(values: Floats, row: np.ndarray, count: int) -> Floats:
    """Return the mean of the known values of each day; NaN if the day has no known value."""
    kept = (row >= 0) & ~np.isnan(values)
    numbers = np.bincount(row[kept], minlength=count)
    sums = np.bincount(row[kept], weights=values[kept], minlength=count)
    means: Floats = np.where(numbers > 0, sums / np.maximum(1, numbers), np.nan)
    return means


def _energy_per_work(ran: JobsTable, days: StudyDays, kwh: Floats, work: Floats, of_nodes: bool) -> Floats:
    """Return the energy of each day divided by the work of the day, in kWh per node-hour.

    If the energy of whole nodes is unknown, only jobs with known energy count.
    """
    if not of_nodes:
        part = ran.where(~np.isnan(ran.energy_joules))
        kwh = spread(part.start_s, part.end_s, part.energy_joules, days.edges_s) / JOULES_PER_KWH
        work = spread(part.start_s, part.end_s, part.work_node_hours, days.edges_s)
    enough = work > 0.01  # less than a minute of one node is no work to relate a day's energy to
    ratio: Floats = np.where(enough, kwh / np.where(enough, work, 1.0), np.nan)
    return ratio


def _fairness(ran: JobsTable, ended: np.ndarray, count: int) -> Floats:
    """Return Jain's index over the accounts' mean bounded slowdowns; NaN with fewer than two accounts."""
    slowdown = ran.completion_s / np.maximum(ran.run_s, _MIN_RUN_S)
    slowdown = np.maximum(slowdown, 1.0)
    accounts = np.unique(ran.account)
    means = np.array([_means(slowdown, np.where(ran.account == a, ended, -1), count) for a in accounts])
    return jain_index(means.reshape(len(accounts), count))


def jain_index(values: Floats) -> Floats:
    """Return Jain's index of each column: 1 if all rows are equal, 1/n if one row has everything.

    NaN values of a column are left out. The index of a column with fewer than two known values is NaN.

    Source: Jain, Chiu and Hawe 1984, DEC-TR-301.
    """
    known = ~np.isnan(values)
    number = known.sum(axis=0)
    filled = np.where(known, values, 0.0)
    squares = (filled**2).sum(axis=0)
    usable = (number >= 2) & (squares > 0)
    index: Floats = np.where(
        usable, filled.sum(axis=0) ** 2 / np.where(usable, number * squares, 1.0), np.nan
    )
    return index


def _worst_waits(jobs: JobsTable, days: StudyDays) -> Floats:
    """Return, for each day, the mean wait in the Slurm account whose jobs wait longest.

    The mean of an account and a day includes the jobs that were pending during this day. The wait of a
    job ends with its start, or with the day if the job is still pending.
    """
    worst = np.full(days.count, np.nan)
    # A job that was cancelled before its start waited until its end.
    left_s = np.where(np.isnan(jobs.start_s), jobs.end_s, jobs.start_s)
    for row in range(days.count):
        begin_s, end_s = days.edges_s[row], days.edges_s[row + 1]
        gone = left_s < begin_s
        waited: Bools = (jobs.submit_s < end_s) & ~gone
        if not waited.any():
            continue
        until_s = np.fmin(left_s[waited], end_s)
        waits = until_s - jobs.submit_s[waited]
        accounts, number = np.unique(jobs.account[waited], return_inverse=True)
        worst[row] = float(_means(waits, number, len(accounts)).max())
    return worst


def account_kpis(
    jobs: JobsTable, days: StudyDays, prices: EnergyPrices | None = None
) -> dict[str, DailyKpis]:
    """Return the KPIs of each account separately, for limits with `per = "account"`."""
    return {
        str(account): daily_kpis(jobs.where(jobs.account == account), days, None, prices)
        for account in np.unique(jobs.account)
    }
