"""Step 2 of a study, the baseline: KPIs of the present state with confidence intervals, and a power analysis.

Source: thesis, section 6.3.2.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from slurm_energy.errors import EnergyError
from slurm_energy.study.data.energy_file import energy_csv
from slurm_energy.study.data.jobs_table import csv_text
from slurm_energy.study.data.kpis import DailyKpis
from slurm_energy.study.data.period import (
    ENERGY_NAME,
    JOBS_NAME,
    StudyPeriod,
    measured_period,
    period_document,
    read_period,
)
from slurm_energy.study.data.source_data import StudySources, source_data
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.goals.indicators import KPIS
from slurm_energy.study.goals.objective import StudyObjective
from slurm_energy.study.rollout.assignment import AssignmentDesign
from slurm_energy.study.statistics.mean_estimate import MIN_DAYS, MeanEstimate, mean_estimate
from slurm_energy.study.statistics.power_analysis import day_variation, power_analysis
from slurm_energy.study.symptoms import symptoms

DAYS_NAME: Final = "days.csv"
_DOUBTFUL_DAYS: Final = 28


def run_baseline(study: StudyDirectory, sources: StudySources, command: str, seed: int = 0) -> dict[str, Any]:
    """Run the step `baseline` of a study, which measures the present state of the cluster.

    Return the result of the step.

    Args:
        study: directory of the study.
        sources: sources of the measured data.
        command: command line of the step, which the manifest records.
        seed: seed of the bootstrap.

    Raises:
        EnergyError: the data cannot be read, or contain no full day in the scope.
    """
    running = study.running("baseline", command, files=sources.files, options=sources.options, seed=seed)
    with running as run:
        objective = study.objective()
        loaded, energy = source_data(run, sources)
        try:
            period = measured_period(objective, loaded, energy)
        except EnergyError:
            run.clear_partial()  # the next run reads the site again: by then the data may suffice
            raise
        daily = period.kpis()
        run.write(JOBS_NAME, csv_text(period.jobs))
        if period.energy is not None:
            run.write(ENERGY_NAME, energy_csv(period.energy))
        run.write(DAYS_NAME, days_csv(period, daily))
        result = baseline_result(objective, period, daily, seed)
        run.finish(result)
    return result


def read_baseline(study: StudyDirectory) -> StudyPeriod:
    """Return the measured period that the step `baseline` has stored.

    Raises:
        UsageError: the step has not run, or a file is damaged.
    """
    return read_period(study.folder("baseline"), study.objective(), study.result("baseline"))


def baseline_estimates(study: StudyDirectory) -> dict[str, MeanEstimate]:
    """Return the mean of each KPI in the baseline. KPIs without a known value are left out.

    Raises:
        UsageError: the step `baseline` of the study has not run.
    """
    estimates = {}
    for name, data in study.result("baseline")["kpis"].items():
        numbers = {key: math.nan if data[key] is None else data[key] for key in _NUMBERS}
        weekdays = np.array([math.nan if value is None else value for value in data["weekdays"]])
        estimates[name] = MeanEstimate(days=data["days"], weekdays=weekdays, **numbers)
    return estimates


_NUMBERS: Final = ("mean", "low", "high", "deviation", "correlation")


def baseline_result(
    objective: StudyObjective, period: StudyPeriod, daily: DailyKpis, seed: int = 0
) -> dict[str, Any]:
    """Return the result of the step `baseline` for a measured period.

    Args:
        objective: objective of the study.
        period: measured period.
        daily: KPIs of each day of the period.
        seed: seed of the bootstrap.
    """
    statistics = objective.statistics
    estimates = {
        name: mean_estimate(daily, name, statistics.confidence, statistics.resamples, seed) for name in KPIS
    }
    known = {name: estimate for name, estimate in estimates.items() if estimate.days}
    analyses = []
    for target in objective.targets:
        wanted = abs(target.change_percent) / 100
        variations = [
            day_variation(period, target.kpi, design)
            for design in (AssignmentDesign.NONE, AssignmentDesign.SWITCHBACK)
        ]
        analysis = power_analysis(
            variations[0], wanted, statistics.confidence, statistics.power, variations[1]
        )
        analyses.append({"kpi": target.kpi, **analysis.to_json()})
    return {
        "period": period_document(period),
        "energy_of_days": daily.energy_source,
        "energy_coverage": _coverage(daily),
        "kpis": {
            name: {"unit": _unit(name, objective), "better": str(KPIS[name].better), **estimate.to_json()}
            for name, estimate in known.items()
        },
        "unknown_kpis": sorted(set(estimates) - set(known)),
        "power": analyses,
        "limits": _limits(objective, estimates),
        "symptoms": [symptom.to_json() for symptom in symptoms(period, daily)],
        "statement": statement(objective, estimates, analyses),
    }


def statement(
    objective: StudyObjective, estimates: Mapping[str, MeanEstimate], analyses: list[dict[str, Any]]
) -> list[str]:
    """Return for each target one sentence that says whether the data suffice to detect the change.

    If the data do not suffice, the sentence says what is missing, for example the number of further days.
    """
    lines = []
    for target, analysis in zip(objective.targets, analyses, strict=True):
        name, days = target.indicator.title, analysis["days"]
        basis = ", at equal work" if "expected energy" in analysis["adjusted_for"] else ""
        if not days:
            lines.append(f"{name}: unknown on all days; the data contain no energy, or too little of it")
        elif analysis["needed_days"] is None:
            lines.append(
                f"{name}: days differ so much that a change of {analysis['wanted']:.1%} cannot be found; "
                "set a larger target, or choose a KPI that does not depend on load"
            )
        elif analysis["suffices"]:
            lines.append(
                f"{name}: {days} days suffice to find a change of {analysis['wanted']:.1%}; "
                f"the smallest change that they show is {analysis['detectable']:.1%}{basis}"
            )
        else:
            lines.append(
                f"{name}: {days} days do not suffice to find a change of {analysis['wanted']:.1%}: "
                f"{analysis['missing_days']} more are needed ({analysis['needed_days']} in all){basis}"
            )
    main = estimates[objective.targets[0].kpi].days
    if MIN_DAYS <= main < _DOUBTFUL_DAYS:
        lines.append(f"{main} days show the weekly pattern, but neither month nor season")
    return lines


def days_csv(period: StudyPeriod, daily: DailyKpis) -> str:
    """Return the KPIs as CSV, one line per day.

    Columns: date, whether the day is used, the reason if the day is not used, coverage, KPIs.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["date", "used", "reason", "energy_coverage", *KPIS])
    for row, day in enumerate(period.days.dates):
        used = bool(period.days.used[row])
        reason = period.outages.get(day, "" if used else "excluded by season.exclude")
        values = [daily.coverage[row], *(daily.values[name][row] for name in KPIS)]
        texts = ["" if value != value else f"{value:.6g}" for value in values]
        writer.writerow([day.isoformat(), int(used), reason, *texts])
    return buffer.getvalue()


def _unit(kpi: str, objective: StudyObjective) -> str:
    """Return the unit of a key performance indicator (KPI) as text.

    The unit of a cost is the currency that the objective of the study states.
    """
    unit = KPIS[kpi].unit
    return objective.prices.currency if unit == "currency" else unit


def _coverage(daily: DailyKpis) -> float:
    """Return the mean share of node-hours with known energy over the days that count.

    The share of a day without work is unknown and left out. The result is NaN if no day has a known share.
    """
    known = daily.coverage[daily.days.used & ~np.isnan(daily.coverage)]
    return float(known.mean()) if len(known) else math.nan


def _limits(objective: StudyObjective, estimates: Mapping[str, MeanEstimate]) -> list[dict[str, Any]]:
    """Return the bounds of all limits of the study, computed from the baseline.

    A missing bound is null.
    """
    listed = []
    for limit in objective.limits:
        estimate = estimates[limit.kpi]
        low, high = limit.bounds(estimate.mean, estimate.deviation)
        listed.append({"kpi": limit.kpi, "per": limit.per, "minimum": low, "maximum": high})
    return listed
