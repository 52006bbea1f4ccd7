"""From rows of whatever file to a workload: the common checks. Reads no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.workload import Workload, workload

_MAX_S = 1e11
"""Bound on times in seconds, three thousand years: beyond it, floats no longer keep a microsecond."""
_MAX_UNITS = 1e9
_MAX_WATTS = 1e12

Power = Callable[[Ints, Floats], Floats]
"""Watts from units and times, where the file has no power."""


@dataclass(frozen=True, slots=True)
class WorkloadRows:
    """One shape of a job per row, as read; columns of shape (r,), NaN for what the file does not say.

    Attributes:
        line: line number in the file.
        job: name of the job; rows side by side with one name are shapes of one job.
        hardware, user, name: of hardware, user and job; empty for none.
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
"""Number of a line and its values by our columns' names, as text or numbers."""


def build(
    rows: WorkloadRows, problems: InputProblems, kinds: Sequence[str], watts_per_unit: float
) -> Workload:
    """Return the workload of the rows that can be simulated; the first submission is at 0.

    Args:
        rows: what was read.
        problems: takes note of rows that are left out.
        kinds: names of the cluster's hardware; a row without hardware is of the first.
        watts_per_unit: power of a job per unit where the file says none.

    Raises:
        UsageError: no row is left.
    """
    good = _good(rows, problems, kinds)
    if not np.any(good):
        raise UsageError(f"{problems.path}", "no job in it that can be simulated", _first(problems))
    take = np.flatnonzero(good)
    chosen: list[int] = take.tolist()
    names = [rows.job[i] for i in chosen]
    new = np.array([i == 0 or names[i] != names[i - 1] for i in range(len(take))])
    starts = np.flatnonzero(new)
    first = np.append(starts, len(take))
    head = take[starts]
    owners = [rows.user[i] for i in head.tolist()]
    _note_order(rows, head, problems)
    users = {name: number for number, name in enumerate(dict.fromkeys(owners))}
    numbers = {name: number for number, name in enumerate(kinds)}
    power = rows.power_watts[take]
    units = rows.units[take]
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
            "time_s": rows.time_s[take],
            "power_watts": np.where(np.isnan(power), watts_per_unit * units, power),
            "hardware": np.array([numbers.get(rows.hardware[i], 0) for i in chosen]),
            "batch": np.nan_to_num(rows.batch[take], nan=0.0),
        },
        users=tuple(name or "nobody" for name in users),
        names=tuple(rows.name[i] for i in head.tolist()) if any(rows.name) else (),
    )


def _good(rows: WorkloadRows, problems: InputProblems, kinds: Sequence[str]) -> np.ndarray:
    """Return which rows can be used; every other one is noted once, with the first thing that is wrong."""
    good = np.ones(len(rows.line), np.bool_)
    known = np.array([not name or name in kinds for name in rows.hardware], np.bool_)
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
        f"hardware that the cluster does not have ({shown(', '.join(kinds))})": ~known,
    }
    times = {
        "time of submission": rows.submit_s,
        "run time": rows.time_s,
        "time limit": rows.time_limit_s,
        "deadline": rows.deadline_s,
    }
    late = {f"the {name} is beyond {_MAX_S:.0e} s": np.abs(column) > _MAX_S for name, column in times.items()}
    for what, mask in ({**wrong, **late}).items():
        problems.leave_out(what, (int(n) for n in rows.line[good & mask]))
        good &= ~mask
    return good


def _whole(values: Floats) -> np.ndarray:
    """Return which values are whole numbers within bounds, or unknown."""
    whole: np.ndarray = np.isnan(values) | (
        (values >= 0) & (values <= _MAX_UNITS) & (np.floor(values) == values)
    )
    return whole


def _note_order(rows: WorkloadRows, head: Ints, problems: InputProblems) -> None:
    late = np.flatnonzero(np.diff(rows.submit_s[head]) < 0) + 1
    problems.doubt("submitted before the job above it: put in order", (int(n) for n in rows.line[head[late]]))


def _first(problems: InputProblems) -> str:
    return problems.report()[0] if problems.counts else ""
