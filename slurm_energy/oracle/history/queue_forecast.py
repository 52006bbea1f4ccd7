"""Predictions from the history of finished runs for all jobs of a queue at once.

The input is columns of jobs. The output is columns of predicted values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_energy.oracle.history.distribution import ATOMS, QUARTER, TAIL
from slurm_energy.oracle.history.forecast import Forecast
from slurm_energy.oracle.history.run_history import History
from slurm_energy.oracle.history.similarity import ATTRIBUTES

_UNKNOWN = (float("nan"),) * ATOMS
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """Forecasts of many jobs. Each array has one value per job; NaN means unknown.

    Attributes:
        duration_s, duration_low_s, duration_high_s: expected run time in seconds, its 5 % and 95 % quantile.
        power_watts, power_low_watts, power_high_watts: expected time-averaged watts of the whole job, their
            5 % and 95 % quantile.
        energy_joules, energy_low_joules, energy_high_joules: expected joules of the whole job, their 5 % and
            95 % quantile.
        runs: number of runs behind the forecast; 0 means that no run is similar to the job.
        level: index of the similarity level in `similarity.LEVELS`; -1 means that no run is similar to the
            job.
    """

    duration_s: Numbers
    duration_low_s: Numbers
    duration_high_s: Numbers
    power_watts: Numbers
    power_low_watts: Numbers
    power_high_watts: Numbers
    energy_joules: Numbers
    energy_low_joules: Numbers
    energy_high_joules: Numbers
    runs: NDArray[np.int64]
    level: NDArray[np.int64]


def predict_many(history: History, jobs: Mapping[str, Sequence[Any]]) -> QueueForecast:
    """Return the forecasts of many jobs. The values equal those that `HistoryOracle` predicts for each job.

    Args:
        history: runs in memory.
        jobs: attributes of the jobs as columns of equal length. The columns have the names in
            `similarity.ATTRIBUTES` and contain values as in `PredictionRequest`. The value None means
            unknown. If a column is missing, the attribute is unknown for all jobs.

    Raises:
        ValueError: the columns have different lengths, a name is unknown, or there is no column.
    """
    count = _length(jobs)
    rows = zip(*(jobs.get(name, repeat(None, count)) for name in ATTRIBUTES), strict=False)
    index_of: dict[Forecast | None, int] = {}
    forecast_of = history.forecast_of
    forecast_index = np.array(
        [index_of.setdefault(forecast_of(row), len(index_of)) for row in rows], dtype=np.int64
    )
    return _figures(list(index_of), forecast_index, jobs, count)


def predict_power_quantile(
    history: History, jobs: Mapping[str, Sequence[Any]], quantile: float
) -> tuple[Numbers, NDArray[np.int64]]:
    """Return a quantile of the time-averaged watts of each job, and the level of similarity.

    The level of similarity tells how similar the runs are on which the forecast is based.

    Args:
        history: runs in memory.
        jobs: attributes of the jobs, as for `predict_many`.
        quantile: from 0 to 1; it is rounded up to a multiple of 1 / `ATOMS`.

    Returns:
        Watts (NaN means unknown) and level (-1 means that no run is similar), shape (jobs,) each.

    Raises:
        ValueError: in the same cases as `predict_many`.
    """
    count = _length(jobs)
    rows = zip(*(jobs.get(name, repeat(None, count)) for name in ATTRIBUTES), strict=False)
    forecasts = [history.forecast_of(row) for row in rows]
    gpus, nodes = _numbers(jobs.get("gpus"), count, 0.0), _numbers(jobs.get("nodes"), count, 0.0)
    unit = np.where(gpus > 0, gpus, np.where(nodes > 0, nodes, 1.0))
    atom = min(max(math.ceil(quantile * ATOMS) - 1, 0), ATOMS - 1)
    watts = np.array([f.watts[atom] if f is not None and f.watts else np.nan for f in forecasts], np.float64)
    level = np.array([f.level if f is not None else -1 for f in forecasts], np.int64)
    return watts * unit, level


def _length(jobs: Mapping[str, Sequence[Any]]) -> int:
    lengths = {len(column) for column in jobs.values()}
    if len(lengths) != 1 or not set(jobs) <= set(ATTRIBUTES):
        raise ValueError(f"columns of one length, from {', '.join(ATTRIBUTES)}, are needed")
    return lengths.pop()


def _figures(
    forecasts: Sequence[Forecast | None],
    forecast_index: NDArray[np.int64],
    jobs: Mapping[str, Sequence[Any]],
    count: int,
) -> QueueForecast:
    limit = _numbers(jobs.get("time_limit_s"), count, np.nan)
    gpus, nodes = _numbers(jobs.get("gpus"), count, 0.0), _numbers(jobs.get("nodes"), count, 0.0)
    unit = np.where(gpus > 0, gpus, np.where(nodes > 0, nodes, 1.0))
    by_limit = np.array([bool(f and f.by_limit) for f in forecasts])[forecast_index]
    scale = np.where(by_limit, limit, 1.0)
    max_value = np.where(np.isnan(limit), np.inf, limit)
    seconds = _summary([f.seconds if f else None for f in forecasts], forecast_index, scale, max_value)
    watts = _summary(
        [f.watts if f else None for f in forecasts], forecast_index, unit, np.full(count, np.inf)
    )
    max_joules = np.full(count, np.inf)
    np.multiply(max_value, watts[2], out=max_joules, where=np.isfinite(max_value) & ~np.isnan(watts[2]))
    joules = _summary([f.joules if f else None for f in forecasts], forecast_index, scale * unit, max_joules)
    runs = np.array([f.runs if f else 0 for f in forecasts])[forecast_index]
    level = np.array([f.level if f else -1 for f in forecasts])[forecast_index]
    return QueueForecast(*seconds, *watts, *joules, runs=runs, level=level)


def _summary(
    grids: Sequence[Sequence[float] | None],
    forecast_index: NDArray[np.int64],
    factor: Numbers,
    max_value: Numbers,
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the mean, 5 % quantile and 95 % quantile of the predicted distribution of each job.

    The distribution is that of the time, the power or the energy. The result is three arrays of shape
    (jobs,). The values are computed for one block of jobs at a time, to limit the memory in use.

    Args:
        grids: distribution of each forecast; None means unknown, which gives NaN.
        forecast_index: index in `grids` of each job, shape (jobs,).
        factor: factor on the values of each job, shape (jobs,).
        max_value: upper limit of the values of each job, shape (jobs,).
    """
    table = np.array([_UNKNOWN if grid is None else grid for grid in grids], dtype=np.float64)
    result = np.empty((3, len(forecast_index)))
    for first in range(0, len(forecast_index), 16384):
        block = slice(first, first + 16384)
        values = np.minimum(table[forecast_index[block]] * factor[block, None], max_value[block, None])
        low = (values[:, TAIL - 1] + values[:, TAIL]) / 2
        high = (values[:, -TAIL] + values[:, -TAIL - 1]) / 2
        mean = values[:, QUARTER:-QUARTER].mean(axis=1)
        result[:, block] = np.clip(mean, low, high), low, high
    return result[0], result[1], result[2]


def _numbers(column: Sequence[Any] | None, count: int, missing: float) -> Numbers:
    if column is None:
        return np.full(count, missing)
    return np.array([missing if value is None else value for value in column], dtype=np.float64)
