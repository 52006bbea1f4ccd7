"""Data of the period of a study, measured on the cluster.

The data are the jobs within the scope of the study, the days, the energy, and the prices of electricity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.grid.csv_series import read_csv
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.grid.units import GridQuantity
from slurm_energy.study.data.days import StudyDays, date_of, study_days
from slurm_energy.study.data.energy_file import read_energy
from slurm_energy.study.data.jobs_file import LoadedJobs, read_jobs
from slurm_energy.study.data.jobs_table import JobsTable
from slurm_energy.study.data.kpis import DailyKpis, EnergyPrices, EnergySeries, daily_kpis
from slurm_energy.study.data.outages import outages
from slurm_energy.study.goals.objective import StudyObjective

JOBS_NAME = "jobs.csv"
ENERGY_NAME = "energy.csv"


@dataclass(frozen=True, slots=True)
class StudyPeriod:
    """A measured period.

    Attributes:
        jobs: jobs within the scope of the study that were submitted, ran or waited in the period.
        days: the days; `used` is False for excluded days and days of outages.
        energy: energy of all nodes; None means that the energy is unknown, or that the scope covers only a
            part of the cluster.
        prices: price and carbon intensity of electricity.
        outages: for each day of an outage, the reason why the day counts as an outage.
        notes: remarks about the data.
    """

    jobs: JobsTable
    days: StudyDays
    energy: EnergySeries | None
    prices: EnergyPrices
    outages: Mapping[date, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def kpis(self) -> DailyKpis:
        """Return the key performance indicators (KPIs) of each day of the period."""
        return daily_kpis(self.jobs, self.days, self.energy, self.prices)

    def between(self, first: int, end: int) -> StudyPeriod:
        """Return the days with the indices `first` to `end` - 1.

        Jobs that overlap these days are included.
        """
        days = self.days.between(first, end)
        kept = _overlapping(self.jobs, days)
        energy = self.energy
        if energy is not None:
            energy = energy.between(float(days.edges_s[0]), float(days.edges_s[-1]))
        return replace(self, jobs=self.jobs.where(kept), days=days, energy=energy)


def measured_period(
    objective: StudyObjective,
    loaded: LoadedJobs,
    energy: EnergySeries | None = None,
    *,
    begin: date | None = None,
    end: date | None = None,
) -> StudyPeriod:
    """Select a period of the data within the scope of the objective. Mark days of outages as unused.

    Args:
        objective: objective of the study.
        loaded: jobs of the whole cluster.
        energy: energy of all nodes; None means unknown.
        begin: first day; None means `scope.begin`, or else the first full day of the data.
        end: last day; None means `scope.end`, or else the last full day of the data.

    Raises:
        UsageError: the scope contains no job, or the data contain no full day.
    """
    scope, zone = objective.scope, objective.season.timezone
    jobs, notes = loaded.jobs, list(loaded.notes)
    if not jobs.count:
        raise UsageError("the data", "contain no job", "read a longer period (-S TIME), or give --jobs FILE")
    kept = np.ones(jobs.count, np.bool_)
    for names, column in ((scope.partitions, jobs.partition), (scope.accounts, jobs.account)):
        if names:
            kept &= np.isin(column, names)
    if not kept.any():
        raise UsageError("scope", "no job of the data is in it", f"change [scope] in {objective.path}")
    begin = begin or (date.fromisoformat(scope.begin) if scope.begin else None)
    end = end or (date.fromisoformat(scope.end) if scope.end else None)
    first, last = _full_days(jobs, energy, zone)
    begin, end = begin or first, end or last
    if end < begin and last < first:
        why = f"contain no full day in the time zone {zone or 'UTC'}"
        raise UsageError("the data", why, "wait until they do, or read a longer period (-S TIME)")
    if end < begin:
        why = f"the data have no full day from {begin} to {end}: they reach from {first} to {last}"
        raise UsageError("scope", why, "read more data, or change scope.begin and scope.end")
    days = study_days(begin, end, zone, objective.season.excluded())
    within = _overlapping(jobs, days)
    found = outages(jobs.where(within), days, energy)
    days = replace(days, used=days.used & np.array([day not in found for day in days.dates]))
    if energy is not None and not kept.all():
        notes.append("energy of idle nodes is not included: the scope is a part of the cluster")
        energy = None
    if energy is not None:
        energy = energy.between(float(days.edges_s[0]), float(days.edges_s[-1]))
    return StudyPeriod(jobs.where(kept & within), days, energy, prices_of(objective), found, tuple(notes))


def read_period(folder: Path, objective: StudyObjective, result: Mapping[str, Any]) -> StudyPeriod:
    """Return the period that a step stored in its folder.

    Args:
        folder: directory of the step, with `JOBS_NAME` and, if energy of nodes is known, `ENERGY_NAME`.
        objective: objective of the study.
        result: result of the step. Its key `period` is an object of `period_document`.

    Raises:
        UsageError: a file is missing or damaged.
    """
    stored = result["period"]
    loaded = read_jobs(folder / JOBS_NAME)
    energy = read_energy(folder / ENERGY_NAME) if (folder / ENERGY_NAME).exists() else None
    if energy is not None:
        energy = replace(energy, source=stored["energy_source"])
    found = {date.fromisoformat(day): str(reason) for day, reason in stored["outages"].items()}
    begin, end = date.fromisoformat(stored["begin"]), date.fromisoformat(stored["end"])
    excluded = {*objective.season.excluded(), *found}
    days = study_days(begin, end, objective.season.timezone, excluded)
    return StudyPeriod(loaded.jobs, days, energy, prices_of(objective), found, tuple(stored["notes"]))


def period_document(period: StudyPeriod) -> dict[str, Any]:
    """Return a summary of a measured period of a study as a JSON object.

    The table of the jobs and the energy values are left out.
    """
    return {
        "begin": period.days.dates[0].isoformat(),
        "end": period.days.dates[-1].isoformat(),
        "days": period.days.count,
        "used_days": int(period.days.used.sum()),
        "outages": {day.isoformat(): reason for day, reason in period.outages.items()},
        "jobs": period.jobs.count,
        "energy_source": "" if period.energy is None else period.energy.source,
        "notes": list(period.notes),
    }


def prices_of(objective: StudyObjective) -> EnergyPrices:
    """Return the price and the carbon intensity that the objective of the study specifies.

    Raises:
        UsageError: a file cannot be read or is malformed.
    """
    prices = objective.prices
    return EnergyPrices(
        _series(objective, prices.price_file, prices.price_per_kwh, GridQuantity.PRICE),
        _series(objective, prices.carbon_file, prices.carbon_g_per_kwh, GridQuantity.CARBON),
        prices.pue,
    )


def _series(
    objective: StudyObjective, file: str, constant: float | None, quantity: GridQuantity
) -> GridSeries | None:
    if not file:
        return None if constant is None else GridSeries.constant(SeriesSource("constant"), constant)
    path = objective.beside(file)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            samples = read_csv(lines, str(path), quantity, objective.prices.currency)
    except OSError as error:
        raise UsageError(
            f"{path}", error.strerror or str(error), f"see {quantity}_file in [prices]"
        ) from None
    return GridSeries(SeriesSource("csv", detail=path.name), samples)


def _full_days(jobs: JobsTable, energy: EnergySeries | None, timezone: str) -> tuple[date, date]:
    """Return the first and the last day that the data cover completely."""
    first_s = float(np.nanmin(jobs.submit_s))
    last_s = float(np.nanmax(np.concatenate([jobs.submit_s, jobs.start_s, jobs.end_s])))
    if energy is not None:
        last_s = max(last_s, float(energy.end_s[-1]))
    first, last = date_of(first_s, timezone), date_of(last_s, timezone)
    begins = study_days(first, last, timezone)
    if first_s > begins.edges_s[0] + 3600:  # submissions of the first hour may be few
        first += timedelta(days=1)
    return first, last - timedelta(days=1)


def _overlapping(jobs: JobsTable, days: StudyDays) -> np.ndarray:
    begin_s, end_s = days.edges_s[0], days.edges_s[-1]
    over_s = np.where(np.isnan(jobs.end_s), np.inf, jobs.end_s)
    kept: np.ndarray = (jobs.submit_s < end_s) & (over_s > begin_s)
    return kept
