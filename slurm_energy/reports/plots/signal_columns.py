"""Conversion of a job's sampled signals to the columns of a chart.

Each column shows the mean of a signal over an equal part of the shown time.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.diagnosis.timeline.window import TimeWindow


def columns_of(series: ObservedSeries, window: TimeWindow, count: int) -> array[float]:
    """Return the mean of a signal in each column (time interval) of a chart.

    The time window of the chart is divided into `count` equal columns. Only known values count. If a
    column is shorter than the interval of the series, the value of the series at the centre of the column
    is used. NaN means that no value is known.
    """
    width_s = (window.to_s - window.from_s) / count
    known = len(series.values)
    result = array("d")
    for number in range(count):
        start = (window.from_s + number * width_s - series.start_s) / series.interval_s
        end = start + width_s / series.interval_s
        first, last = math.ceil(start - 0.5), math.ceil(end - 0.5)
        if last <= first:
            first = math.floor((start + end) / 2)
            last = first + 1
        result.append(mean_known(series.values[max(0, first) : max(0, min(last, known))]))
    return result


def mean_known(values: Iterable[float]) -> float:
    """Return the mean of the known values, or NaN if no value is known."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def sum_columns(columns: Sequence[Sequence[float]]) -> array[float]:
    """Return the sum of several signals for each column (time interval) of a chart.

    Unknown values are left out of the sum. The sum is NaN if no value in the column is known.

    Args:
        columns: for each signal, its values in the columns of the chart.
    """
    sums = array("d")
    for values in zip(*columns, strict=True):
        known = [value for value in values if not math.isnan(value)]
        sums.append(math.fsum(known) if known else math.nan)
    return sums


def range_columns(columns: Sequence[Sequence[float]]) -> tuple[array[float], array[float], array[float]]:
    """Return minimum, mean and maximum of several signals for each column (time interval) of a chart.

    Unknown values are left out. The three results are NaN if no value in the column is known.

    Args:
        columns: for each signal, its values in the columns of the chart.
    """
    low, mean, high = array("d"), array("d"), array("d")
    for values in zip(*columns, strict=True):
        known = [value for value in values if not math.isnan(value)]
        low.append(min(known, default=math.nan))
        mean.append(mean_known(known))
        high.append(max(known, default=math.nan))
    return low, mean, high
