"""Days on which the effect of a deployment is measured, for tables and figures.

A day belongs to the baseline, is treated, or is a control day. For each key performance indicator (KPI), a
day has the measured value, and the value expected from the work of the day.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

import numpy as np

from slurm_energy.study.effects.effect_periods import EffectPeriods
from slurm_energy.study.goals.indicators import KPIS


@dataclass(frozen=True, slots=True)
class EffectDay:
    """A day that counts for the effect on a KPI.

    Attributes:
        day: date.
        kpi: name of the KPI.
        group: `baseline`, `control` or `treated`.
        value: value of the KPI.
        expected: value expected from the work of the day; NaN means unknown.
        period: number of the drawn period that contains the day, see `PeriodSeries`; None means that no
            periods were drawn.
    """

    day: str
    kpi: str
    group: str
    value: float
    expected: float
    period: int | None


def effect_days(periods: EffectPeriods) -> list[EffectDay]:
    """Return one entry per KPI and day for a table of daily values. Unknown values are omitted.

    The entries have the order of the KPIs. For each KPI, the days of the main series (the treated group, or
    all jobs) come first, then the days of the control group. Each series is in the order of time.
    """
    dates = {
        float(begin) / 86400.0: day.isoformat()
        for begin, day in zip(periods.data.days.edges_s[:-1], periods.data.days.dates, strict=True)
    }
    rows = []
    for kpi in KPIS:
        for series in (periods.series(kpi), periods.control_series(kpi)):
            if series is None:
                continue
            expected = np.full(len(series.value), np.nan) if series.expected is None else series.expected
            for row, value in enumerate(series.value.tolist()):
                if value != value:
                    continue
                group = "treated" if series.is_treated[row] else "control"
                group = group if series.is_experiment[row] else "baseline"
                day = dates[float(series.start_day[row])]
                period = None if series.period is None else int(series.period[row])
                rows.append(EffectDay(day, kpi, group, value, float(expected[row]), period))
    return rows


def days_csv(days: list[EffectDay]) -> str:
    """Return the daily values of a study as CSV.

    Each line contains the value of a KPI on a day, and the value expected from the work of this day. An
    unknown expected value, and the period if none was drawn, are written as empty fields.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["date", "kpi", "group", "value", "expected", "period"])
    for one in days:
        expected = "" if one.expected != one.expected else f"{one.expected:.6g}"
        period = "" if one.period is None else one.period
        writer.writerow([one.day, one.kpi, one.group, f"{one.value:.6g}", expected, period])
    return buffer.getvalue()
