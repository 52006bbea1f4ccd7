"""Means of the drawn periods of a switchback whose periods are longer than a day.

A drawn period is a period whose arm (with or without the change) was drawn at random. All days of a drawn
period have the same arm, and their values are correlated. Such days are not independent observations of the
effect. The drawn periods are compared instead. The adjustment for the day of the week and for the work is
estimated from the differences between the days within the periods, and the periods are then
compared by the means of the adjusted values.

Source: Donald and Lang, "Inference with difference-in-differences and other panel data", Review of Economics
and Statistics 89 (2007), for the two steps and for the degrees of freedom.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_energy.study.effects.period_series import PeriodSeries
from slurm_energy.study.statistics.least_squares import Floats, weekday_columns


def has_long_periods(series: PeriodSeries) -> bool:
    """Return whether any drawn period contains several days of the series."""
    return series.period is not None and len(np.unique(series.period)) < len(series.period)


def period_means(series: PeriodSeries, values: Floats) -> tuple[PeriodSeries, list[str]]:
    """Return one row per drawn period instead of one row per day.

    Args:
        series: the days; `series.period` must not be None.
        values: value of each day that is to be compared, shape (days,).

    Returns:
        The periods in the order of time, and the names of the influences that their values are adjusted for.
        The value of a period is the mean of the adjusted `values` of its days. The periods contain no work,
        and all have the same weekday, because the values are adjusted already.
    """
    assert series.period is not None
    _, first, index = np.unique(series.period, return_index=True, return_inverse=True)
    size = np.bincount(index)

    def means(column: Floats) -> Floats:
        mean: Floats = np.bincount(index, column) / size
        return mean

    columns = list(weekday_columns(series.weekday).T)
    names = ["weekday"] if columns else []
    if series.work is not None and np.ptp(series.work) > 0.0:
        columns.append(np.log(series.work))
        names.append("work")
    if columns:
        within = np.column_stack([column - means(column)[index] for column in columns])
        slopes = np.linalg.lstsq(within, values - means(values)[index], rcond=None)[0]
        values = values - np.column_stack(columns) @ slopes
    rows = np.zeros(len(series.value), np.bool_)
    rows[first] = True
    periods, mean = series.rows(rows), means(values)[np.argsort(first)]
    return replace(periods, value=mean, weekday=np.zeros_like(periods.weekday), work=None), names
