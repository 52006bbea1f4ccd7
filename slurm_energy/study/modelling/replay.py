"""Errors of a replay: measured and simulated KPIs of the same days. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from slurm_energy.study.data.days import HOUR_S, StudyDays, spread
from slurm_energy.study.data.jobs_table import Floats, JobsTable
from slurm_energy.study.data.kpis import daily_kpis
from slurm_energy.study.data.period import StudyPeriod
from slurm_energy.study.goals.indicators import KPIS
from slurm_energy.study.modelling.twin import TwinRun

BOUNDS: Final[Mapping[str, float]] = {"energy_kwh": 0.08, "makespan_s": 0.08, "mean_jct_s": 0.15}
"""Permitted relative errors of a replay; the other KPIs are stated without a bound."""
_DAILY: Final = (
    *("energy_kwh", "energy_per_work_kwh", "jobs_per_hour", "node_hours_per_hour"),
    *("fairness", "peak_power_watts"),
)
_PERCENTILES: Final = (50, 90, 99)
REPLAY_KPIS: Final = (
    *("makespan_s", "mean_jct_s", "mean_wait_s"),
    *_DAILY,
    *(f"power_p{percent}_watts" for percent in _PERCENTILES),
)
"""Names of the figures that `replay_errors` compares."""
_OWN_TITLES: Final = {"makespan_s": ("makespan", "s"), "mean_wait_s": ("mean wait", "s")} | {
    f"power_p{percent}_watts": (f"power of {percent} % of the hours", "W") for percent in _PERCENTILES
}


def replay_title(kpi: str) -> tuple[str, str]:
    """Return the title and the unit of a key performance indicator (KPI) for people.

    `kpi` is one of `REPLAY_KPIS`.
    """
    return _OWN_TITLES[kpi] if kpi in _OWN_TITLES else (KPIS[kpi].title, KPIS[kpi].unit)


@dataclass(frozen=True, slots=True)
class ReplayDeviation:
    """Measured and simulated value of a KPI.

    Attributes:
        kpi: `makespan_s`, `power_pNN_watts` (percentile NN of hourly power), or a KPI of `indicators`.
        measured, simulated: the values; NaN means unknown.
        bound: permitted relative error; None means no bound.
    """

    kpi: str
    measured: float
    simulated: float
    bound: float | None = None

    @property
    def error(self) -> float:
        """Relative error of the simulated value; NaN means unknown."""
        return self.simulated / self.measured - 1 if self.measured else math.nan

    @property
    def exceeds(self) -> bool:
        """Whether the replay error of a key performance indicator is above its permitted bound."""
        return self.bound is not None and abs(self.error) > self.bound

    def to_json(self) -> dict[str, Any]:
        """Return the deviation as a JSON object."""
        return asdict(self) | {"error": self.error, "exceeds": self.exceeds}


def replay_errors(
    period: StudyPeriod, run: TwinRun, days: StudyDays, bounds: Mapping[str, float] = BOUNDS
) -> list[ReplayDeviation]:
    """Return the errors of a simulated replay of a cluster relative to the measurement.

    For makespan and for completion and waiting times, the jobs submitted on the compared days count. For
    energy and power, the whole cluster on the compared days counts.

    Args:
        period: measured period of the cluster.
        run: replay of the whole period. The compared days therefore begin with running and waiting jobs.
        days: days on which replay and measurement are compared.
        bounds: permitted relative errors by KPI.
    """
    pairs: dict[str, tuple[float, float]] = {}
    measured, simulated = _submitted(period.jobs, days), _submitted(run.jobs, days)
    pairs["makespan_s"] = (_makespan_s(measured), _makespan_s(simulated))
    pairs["mean_jct_s"] = (_mean(measured.completion_s), _mean(simulated.completion_s))
    pairs["mean_wait_s"] = (
        _mean(measured.start_s - measured.submit_s),
        _mean(simulated.start_s - simulated.submit_s),
    )
    energy = None if period.energy is None else run.energy
    real = daily_kpis(period.jobs, days, period.energy, period.prices).values
    twin = daily_kpis(run.jobs, days, energy, period.prices).values
    for name in _DAILY:
        both = days.used & ~np.isnan(real[name]) & ~np.isnan(twin[name])
        pairs[name] = (_mean(real[name][both]), _mean(twin[name][both]))
    real_watts, twin_watts = _watts(period, days), _hourly_watts(run, days, period)
    kept = ~np.isnan(real_watts) & ~np.isnan(twin_watts)
    for percent in _PERCENTILES if kept.any() else ():
        values = (np.percentile(real_watts[kept], percent), np.percentile(twin_watts[kept], percent))
        pairs[f"power_p{percent}_watts"] = (float(values[0]), float(values[1]))
    return [ReplayDeviation(name, *values, bounds.get(name)) for name, values in pairs.items()]


def replay_csv(period: StudyPeriod, run: TwinRun, days: StudyDays) -> str:
    """Return measured and simulated power by hour as CSV; unknown values are empty.

    Args:
        period: measured period of the cluster.
        run: replay of the whole period.
        days: the days to write.
    """
    rows = ["start_s,measured_watts,simulated_watts"]
    hours = (_hours(days)[:-1], _watts(period, days), _hourly_watts(run, days, period))
    for start_s, *watts in zip(*(column.tolist() for column in hours), strict=True):
        texts = ["" if value != value else f"{value:.1f}" for value in watts]
        rows.append(",".join([f"{start_s:.0f}", *texts]))
    return "\n".join(rows) + "\n"


def _submitted(jobs: JobsTable, days: StudyDays) -> JobsTable:
    row = days.day_of(jobs.submit_s)
    inside = (row >= 0) & (jobs.run_s >= 1)
    return jobs.where(inside)


def _makespan_s(jobs: JobsTable) -> float:
    return float(jobs.end_s.max() - jobs.submit_s.min()) if jobs.count else math.nan


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _hours(days: StudyDays) -> Floats:
    return np.arange(days.edges_s[0], days.edges_s[-1] + 1, HOUR_S)


def _watts(period: StudyPeriod, days: StudyDays) -> Floats:
    """Return the measured power of the nodes in each hour.

    If the power of the nodes is unknown, return the power of the jobs.
    """
    if period.energy is None:
        return _job_watts(period.jobs, days)
    known = ~np.isnan(period.energy.joules)
    energy, edges = period.energy, _hours(days)
    start, end = energy.start_s[known], energy.end_s[known]
    covered = spread(start, end, end - start, edges)
    joules = spread(start, end, energy.joules[known], edges)
    watts: Floats = np.where(covered > 0.99 * HOUR_S, joules / HOUR_S, np.nan)
    return watts


def _hourly_watts(run: TwinRun, days: StudyDays, period: StudyPeriod) -> Floats:
    if period.energy is None:
        return _job_watts(run.jobs, days)
    energy, edges = run.energy, _hours(days)
    simulated_s = spread(energy.start_s, energy.end_s, energy.end_s - energy.start_s, edges)
    joules = spread(energy.start_s, energy.end_s, energy.joules, edges)
    watts: Floats = np.where(simulated_s > 0.99 * HOUR_S, joules / HOUR_S, np.nan)  # NaN after the last job
    return watts


def _job_watts(jobs: JobsTable, days: StudyDays) -> Floats:
    known = jobs.where((jobs.run_s > 0) & ~np.isnan(jobs.energy_joules))
    return spread(known.start_s, known.end_s, known.energy_joules, _hours(days)) / HOUR_S
