"""Table that every reader of workload files returns, its common checks, and its conversion to a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.workload import Workload, workload

_MAX_S = 1e11
"""Bound on times in seconds, three thousand years: floats above it cannot represent a microsecond."""
_MAX_UNITS = 1e9
_MAX_WATTS = 1e12


@dataclass(frozen=True, slots=True)
class WorkloadRows:
    """Rows of a workload file, one per shape of a job (way to run it: hardware, size, batch, times).

    All columns have shape (r,). NaN marks values that the file does not contain. Times are in seconds.

    Attributes:
        line: line number in the file.
        job: identifier of the job in the file. Adjacent rows with the same identifier are shapes of one job.
        hardware: name of the kind of nodes; empty: none.
        user: name of the user; empty: none.
        name: Slurm's name of the job; empty: none.
    """

    line: Ints
    job: Sequence[object]
    submit_s: Floats
    time_s: Floats
    units: Floats
    time_limit_s: Floats
    deadline_s: Floats
    power_watts: Floats
    hardware: Sequence[str]
    user: Sequence[str]
    batch: Floats
    name: Sequence[str] = ()


Line = tuple[int, Mapping[str, Any]]
"""Number of a line and its values, text or numbers, by our column names."""


def build(
    rows: WorkloadRows, problems: InputProblems, kinds: Sequence[str], watts_per_unit: float
) -> Workload:
    """Return the workload of the usable rows. Times are shifted so that the first submission is at 0.

    Args:
        rows: rows of a reader.
        problems: records skipped rows.
        kinds: names of the kinds of nodes. A row without a kind belongs to the first one.
        watts_per_unit: power of a job per unit if the file contains no power.

    Raises:
        UsageError: no row is usable.
    """
    usable = _usable(rows, problems, kinds)
    if not np.any(usable):
        raise UsageError(f"{problems.path}", "no job in it that can be simulated", _first(problems))
    rows_used = np.flatnonzero(usable)
    chosen: list[int] = rows_used.tolist()
    names = [rows.job[i] for i in chosen]
    new = np.array([i == 0 or names[i] != names[i - 1] for i in range(len(rows_used))])
    starts = np.flatnonzero(new)
    first = np.append(starts, len(rows_used))
    head = rows_used[starts]
    owners = [rows.user[i] for i in head.tolist()]
    _warn_of_order(rows, head, problems)
    users = {name: number for number, name in enumerate(dict.fromkeys(owners))}
    numbers = {name: number for number, name in enumerate(kinds)}
    power = rows.power_watts[rows_used]
    units = rows.units[rows_used]
    begin_s = float(np.min(rows.submit_s[head]))
    return workload(
        first,
        {
            "submit_s": rows.submit_s[head] - begin_s,
            "user": np.array([users[name] for name in owners]),
            "time_limit_s": rows.time_limit_s[head],
            "deadline_s": rows.deadline_s[head] - begin_s,
        },
        {
            "units": units,
            "time_s": rows.time_s[rows_used],
            "power_watts": np.where(np.isnan(power), watts_per_unit * units, power),
            "hardware": np.array([numbers.get(rows.hardware[i], 0) for i in chosen]),
            "batch": np.nan_to_num(rows.batch[rows_used], nan=0.0),
        },
        users=tuple(name or "nobody" for name in users),
        names=tuple(rows.name[i] for i in head.tolist()) if any(rows.name) else (),
    )


def _usable(rows: WorkloadRows, problems: InputProblems, kinds: Sequence[str]) -> np.ndarray:
    """Return a mask of the usable rows, shape (r,).

    Each unusable row is recorded once in `problems`, with the first problem found.
    """
    usable = np.ones(len(rows.line), np.bool_)
    available = np.array([not name or name in kinds for name in rows.hardware], np.bool_)
    wrong: Mapping[str, np.ndarray] = {
        "the time of submission is missing": ~np.isfinite(rows.submit_s),
        "the run time is missing": np.isnan(rows.time_s),
        "the run time is negative": rows.time_s < 0,
        "it never ran (run time 0)": rows.time_s == 0,
        "the run time is infinite": np.isinf(rows.time_s),
        "the size is missing or not positive": ~(rows.units > 0),
        "the size is not a whole number": np.floor(rows.units) != rows.units,
        f"the size is above {_MAX_UNITS:.0e}": rows.units > _MAX_UNITS,
        "the power is negative": rows.power_watts < 0,
        f"the power is above {_MAX_WATTS:.0e} W": rows.power_watts > _MAX_WATTS,
        "the time limit is not positive": rows.time_limit_s <= 0,
        "the batch size is not a whole number from 0 to 1e+09": ~_whole(rows.batch),
        f"hardware that the cluster does not have ({shown(', '.join(kinds))})": ~available,
    }
    times = {
        "time of submission": rows.submit_s,
        "run time": rows.time_s,
        "time limit": rows.time_limit_s,
        "deadline": rows.deadline_s,
    }
    excessive = {
        f"the {name} is beyond {_MAX_S:.0e} s": np.abs(column) > _MAX_S for name, column in times.items()
    }
    for problem, mask in ({**wrong, **excessive}).items():
        problems.skip(problem, (int(n) for n in rows.line[usable & mask]))
        usable &= ~mask
    return usable


def _whole(values: Floats) -> np.ndarray:
    """Return for each value whether it is unknown (NaN) or an integer within the permitted range."""
    whole: np.ndarray = np.isnan(values) | (
        (values >= 0) & (values <= _MAX_UNITS) & (np.floor(values) == values)
    )
    return whole


def _warn_of_order(rows: WorkloadRows, head: Ints, problems: InputProblems) -> None:
    unordered = np.flatnonzero(np.diff(rows.submit_s[head]) < 0) + 1
    problems.warn(
        "submitted before the job above it: put in order", (int(n) for n in rows.line[head[unordered]])
    )


def _first(problems: InputProblems) -> str:
    return problems.report()[0] if problems.counts else ""
