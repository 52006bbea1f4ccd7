"""Result files of simulations: one row per job, power over time, and totals, as CSV, Parquet or JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slurm_energy.errors import UnavailableError, install_extra
from slurm_energy.safe_text import escape_csv
from slurm_energy.simulator.results.simulation_result import JobOutcome, SimulationResult

FORMATS = ("csv", "parquet", "json")


def job_columns(outcome: SimulationResult, kinds: Sequence[str]) -> dict[str, list[Any]]:
    """Return results and predictions of the jobs as columns by name.

    Each column has one value per job. None marks a missing value.

    Args:
        outcome: result of the simulation.
        kinds: names of the kinds of nodes.
    """
    work, accounts = outcome.workload, outcome.accounts
    shape = accounts.shape
    ran = shape >= 0
    rows = np.where(ran, shape, 0)

    def of_shape(values: np.ndarray) -> list[Any]:
        return [value if started else None for value, started in zip(values[rows].tolist(), ran, strict=True)]

    return {
        "job_id": work.job_id.tolist(),
        "name": list(work.names) or [None] * work.count,
        "user": [work.users[user] for user in work.user],
        "outcome": [JobOutcome(value).name.lower() for value in accounts.outcome],
        "submit_s": work.submit_s.tolist(),
        "start_s": _without_nan(accounts.start_s),
        "end_s": _without_nan(accounts.end_s),
        "deadline_s": _without_nan(work.deadline_s),
        "hardware": [kinds[i] if i is not None else None for i in of_shape(work.hardware)],
        "units": of_shape(work.units),
        "batch": of_shape(work.batch),
        "predicted_time_s": of_shape(work.predicted_time_s),
        "predicted_watts": of_shape(work.predicted_watts),
        "run_s": accounts.run_s.tolist(),
        "energy_joules": accounts.energy_joules.tolist(),
        "lost_joules": accounts.lost_joules.tolist(),
        "preemptions": accounts.preemptions.tolist(),
        "failures": accounts.failures.tolist(),
    }


def power_columns(outcome: SimulationResult) -> dict[str, list[Any]]:
    """Return the power over time as two columns: times in seconds and watts of the cluster.

    Each power value holds until the next time.
    """
    times, watts = outcome.power
    return {"time_s": times.tolist(), "watts": watts.tolist()}


def write(columns: Mapping[str, Sequence[Any]], path: Path, form: str) -> None:
    """Write a table to a file. All columns must have the same length.

    Args:
        columns: values by column name.
        path: the file.
        form: `csv`, `parquet` or `json`.

    Raises:
        UnavailableError: Parquet is requested but pyarrow is missing, or the file cannot be written.
    """
    try:
        if form == "json":
            path.write_text(json.dumps(columns))
        elif form == "parquet":
            _parquet(columns, path)
        else:
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(map(escape_csv, row) for row in zip(*columns.values(), strict=True))
    except OSError as error:
        raise UnavailableError(f"{path}", error.strerror or "cannot be written") from None


def _parquet(columns: Mapping[str, Sequence[Any]], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UnavailableError("Parquet", "pyarrow is not installed", install_extra("parquet")) from None
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), path)


def _without_nan(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


class SeedMean(NamedTuple):
    """Mean of a total over simulations with different seeds.

    Attributes:
        mean: mean over the simulations that have a value.
        deviation: standard deviation; 0 if only one simulation has a value.
        known: number of simulations that have a value.
        seeds: number of all simulations.
    """

    mean: float
    deviation: float
    known: int
    seeds: int


def mean_and_deviation(summaries: Iterable[Mapping[str, Any]]) -> dict[str, SeedMean | None]:
    """Return mean and standard deviation of each total over several simulations.

    The entry of a total is None if no simulation has a value for it.
    """
    listed = list(summaries)
    result: dict[str, SeedMean | None] = {}
    for name in listed[0] if listed else ():
        values = [float(row[name]) for row in listed if row.get(name) is not None]
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        result[name] = (
            SeedMean(float(np.mean(values)), deviation, len(values), len(listed)) if values else None
        )
    return result
