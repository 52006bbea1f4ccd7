"""Symptoms of wasted energy in a measured period of a study.

The symptoms suggest the hypotheses of the study. All functions are pure. Source: thesis, section
6.3.2.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.study.data.days import HOUR_S, spread
from slurm_energy.study.data.jobs_table import Floats, JobsTable
from slurm_energy.study.data.kpis import DailyKpis
from slurm_energy.study.data.period import StudyPeriod

LOST_STATES: Final = ("FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "CANCELLED")
_MIN_IDLE: Final = 0.05
_MIN_PEAK: Final = 1.5
_MIN_LOST: Final = 0.05
_MIN_WAIT_RATIO: Final = 3.0


@dataclass(frozen=True, slots=True)
class StudySymptom:
    """An observation that suggests where energy can be saved.

    Attributes:
        name: `idle_energy`, `power_peaks`, `lost_energy`, `unequal_load` or `unequal_waits`.
        value: figure that shows the symptom.
        text: observation as a sentence.
        hypothesis: the probable cause of the observation, and a possible remedy.
    """

    name: str
    value: float
    text: str
    hypothesis: str

    def to_json(self) -> dict[str, Any]:
        """Return the symptom as a JSON object."""
        return asdict(self)


def symptoms(period: StudyPeriod, daily: DailyKpis) -> list[StudySymptom]:
    """Return the symptoms that the data of a period show. A symptom hints at wasted energy.

    Args:
        period: measured period of the cluster.
        daily: KPIs of each day of the period.
    """
    listed = [_idle(period, daily), _peaks(daily), _lost(period.jobs), *_unequal(period)]
    return [symptom for symptom in listed if symptom is not None]


def _idle(period: StudyPeriod, daily: DailyKpis) -> StudySymptom | None:
    if period.energy is None:
        return None
    jobs = period.jobs.where(period.jobs.end_s > period.jobs.start_s)
    known = jobs.where(~np.isnan(jobs.energy_joules))
    of_jobs = spread(known.start_s, known.end_s, known.energy_joules, period.days.edges_s) / JOULES_PER_KWH
    kwh = daily.values["energy_kwh"]
    kept = period.days.used & ~np.isnan(kwh) & (daily.coverage >= 0.98)
    if not kept.any():
        return None
    share = 1.0 - float(of_jobs[kept].sum() / kwh[kept].sum())
    if share < _MIN_IDLE:
        return None
    return StudySymptom(
        "idle_energy",
        share,
        f"{share:.0%} of the energy is used by nodes without a job",
        "nodes idle: power idle nodes down ([power_saving]), or pack jobs",
    )


def _peaks(daily: DailyKpis) -> StudySymptom | None:
    peak, kwh = daily.values["peak_power_watts"], daily.values["energy_kwh"]
    kept = daily.days.used & ~np.isnan(peak) & ~np.isnan(kwh)
    if not kept.any():
        return None
    mean_watts = float(kwh[kept].sum() / daily.days.hours[kept].sum()) * 1000
    highest = float(peak[kept].max())
    if mean_watts <= 0 or highest / mean_watts < _MIN_PEAK:
        return None
    return StudySymptom(
        "power_peaks",
        highest / mean_watts,
        f"the highest power ({highest:,.0f} W) is {highest / mean_watts:.1f} times the mean",
        "many power-hungry jobs run at once: a power budget or deferral levels the power",
    )


def _lost(jobs: JobsTable) -> StudySymptom | None:
    known = jobs.where(~np.isnan(jobs.energy_joules))
    total = float(known.energy_joules.sum())
    lost = float(known.energy_joules[np.isin(known.state, LOST_STATES)].sum())
    if total <= 0 or lost / total < _MIN_LOST:
        return None
    return StudySymptom(
        "lost_energy",
        lost / total,
        f"{lost / total:.0%} of the energy of jobs went into jobs that failed, timed out or were cancelled",
        "checkpoints, and time limits near the run time; scheduling does not save this energy",
    )


def _unequal(period: StudyPeriod) -> list[StudySymptom | None]:
    """Return the symptoms of unequal use of the cluster in a study.

    There are two symptoms: jobs of some accounts wait much longer than those of others, and jobs in some
    partitions wait much longer than in others.
    """
    jobs = period.jobs.where(period.jobs.end_s > period.jobs.start_s)
    waits = _group_means(jobs.account, (jobs.start_s - jobs.submit_s) / HOUR_S)
    found: list[StudySymptom | None] = []
    if len(waits) > 1:
        (low_name, low), (high_name, high) = min(waits.items(), key=_value), max(waits.items(), key=_value)
        if high > 0.1 and high > _MIN_WAIT_RATIO * max(low, 0.01):
            text = f"jobs of account {high_name} wait {high:.1f} h, those of {low_name} {low:.1f} h"
            why = "shares or partitions are unequal: watch worst_wait_s and fairness as limits"
            found.append(StudySymptom("unequal_waits", high / max(low, 0.01), text, why))
    by_partition = _group_means(jobs.partition, (jobs.start_s - jobs.submit_s) / HOUR_S)
    if len(by_partition) > 1:
        busy = max(by_partition.items(), key=_value)
        free = min(by_partition.items(), key=_value)
        if busy[1] > 0.1 and busy[1] > _MIN_WAIT_RATIO * max(free[1], 0.01):
            text = f"jobs wait {busy[1]:.1f} h in partition {busy[0]}, {free[1]:.1f} h in {free[0]}"
            why = "one kind of nodes is preferred: a policy that weighs energy may use the others"
            found.append(StudySymptom("unequal_load", busy[1] / max(free[1], 0.01), text, why))
    return found


def _value(item: tuple[str, float]) -> float:
    return item[1]


def _group_means(names: np.ndarray, values: Floats) -> dict[str, float]:
    return {
        str(name): float(values[names == name].mean())
        for name in np.unique(names)
        if name and np.any(names == name)
    }
