"""Common table into which every reader of workload files converts its file.

The module checks the rows of the table and builds the simulated workload from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from slurm_energy.quantities import shown
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.license_text import license_columns, parse_licenses
from slurm_energy.simulator.workloads.workload import Workload, workload

NEEDED_COLUMNS = ("submit_s", "time_s", "units")
"""Columns without which a file describes no jobs."""
_MAX_S = 1e11
"""Bound on times in seconds, three thousand years: floats above it cannot represent a microsecond."""
_MAX_UNITS = 1e9
_MAX_WATTS = 1e12
_MAX_GIB = 1e12


@dataclass(frozen=True, slots=True)
class WorkloadRows:
    """Rows of workload files. Each row is one shape of a job: a way to run it (hardware, size, batch, times).

    All columns have shape (r,). NaN marks values that the file does not contain. Times are in seconds.

    Attributes:
        line: line number of the row in its file.
        job: number of the row's job. Adjacent rows with the same number are shapes of one job.
        identity: number that identifies the job id in the file; -1 if the file has no job id.
        hardware: name of the kind of nodes; empty if the file states none.
        user: name of the user; empty if the file states none.
        name: Slurm's name of the job; empty if the file states none.
        slack_s: maximum time after submission by which the start may be deferred.
        checkpointable: nonzero if the job can be suspended and resumed.
        partition, account, qos: names in Slurm; empty if the file states none.
        state: Slurm's state of the job, such as COMPLETED; empty if the file states none.
        unit_memory_gib: memory that the job requests per unit.
        reservation: name of the requested reservation; empty if the file states none.
        licenses: requested licenses as in Slurm, such as `a:2,b`; empty if the file states none.
        file: index of the row's file among the files that are read together.
    """

    line: Ints
    job: Ints
    identity: Ints
    submit_s: Floats
    time_s: Floats
    units: Floats
    time_limit_s: Floats
    deadline_s: Floats
    slack_s: Floats
    checkpointable: Floats
    power_watts: Floats
    hardware: Sequence[str]
    user: Sequence[str]
    batch: Floats
    name: Sequence[str] = ()
    partition: Sequence[str] = ()
    account: Sequence[str] = ()
    qos: Sequence[str] = ()
    state: Sequence[str] = ()
    unit_memory_gib: Floats | None = None
    reservation: Sequence[str] = ()
    licenses: Sequence[str] = ()
    file: Ints | None = None

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(self.line)

    def heads(self) -> Ints:
        """Return the index of the first row of each job.

        A job has several rows if it can run in several ways.
        """
        new = np.concatenate([[True], self.job[1:] != self.job[:-1]]) if self.count else np.zeros(0, np.bool_)
        return np.flatnonzero(new)

    def memory_gib(self) -> Floats:
        """Return the requested memory per unit (GPU, core or node) in GiB, one value per row.

        NaN means that the row requests no memory.
        """
        return np.full(self.count, np.nan) if self.unit_memory_gib is None else self.unit_memory_gib

    def take(self, kept: Bools) -> WorkloadRows:
        """Return the rows for which the mask `kept`, shape (r,), is true."""
        if np.all(kept):
            return self
        rows: list[int] = np.flatnonzero(kept).tolist()
        return replace(self, **{name: _taken(value, kept, rows) for name, value in _columns(self).items()})


def _columns(rows: WorkloadRows) -> dict[str, Any]:
    """Return the columns of a table of jobs as a dict by name. Missing columns are left out."""
    values = {spec.name: getattr(rows, spec.name) for spec in fields(rows)}
    return {name: value for name, value in values.items() if value is not None and len(value)}


def _taken(values: Any, kept: Bools, rows: list[int]) -> Any:
    return values[kept] if isinstance(values, np.ndarray) else [values[row] for row in rows]


def merged(tables: Sequence[WorkloadRows]) -> WorkloadRows:
    """Return the rows of several files as one table, in the order of the files."""
    if len(tables) == 1:
        return replace(tables[0], file=np.zeros(tables[0].count, np.int64))
    columns: dict[str, Any] = {}
    for spec in fields(WorkloadRows):
        parts = [getattr(table, spec.name) for table in tables]
        if spec.name == "unit_memory_gib":
            columns[spec.name] = np.concatenate([table.memory_gib() for table in tables])
        elif isinstance(parts[0], np.ndarray):
            columns[spec.name] = np.concatenate(parts)
        elif any(part is not None and len(part) for part in parts):
            padded = [part or [""] * table.count for part, table in zip(parts, tables, strict=True)]
            columns[spec.name] = [text for part in padded for text in part]
    counts = [table.count for table in tables]
    jobs = [int(table.job[-1]) + 1 if table.count else 0 for table in tables]
    columns["job"] += np.repeat(np.cumsum([0, *jobs[:-1]]), counts)
    columns["file"] = np.repeat(np.arange(len(tables)), counts)
    return WorkloadRows(**columns)


Line = tuple[int, Mapping[str, Any]]
"""Number of a line and its values, text or numbers, by our column names."""


def build(rows: WorkloadRows, kinds: Sequence[str], watts_per_unit: float) -> Workload:
    """Build the workload of the simulator from usable rows of workload files.

    Each row describes a job. Times are shifted so that the first submission is at 0.

    Args:
        rows: at least one row, each of them usable.
        kinds: names of the kinds of nodes. A row without a kind belongs to the first kind.
        watts_per_unit: power of a job per unit (GPU, core or node) in watts if the file contains no
            power.
    """
    head = rows.heads()
    jobs: list[int] = head.tolist()
    owners = [rows.user[i] for i in jobs]
    users = {name: number for number, name in enumerate(dict.fromkeys(owners))}
    numbers = {name: number for number, name in enumerate(kinds)}
    begin_s = float(np.min(rows.submit_s[head]))
    partition, partitions = _numbered(
        [rows.partition[i] for i in jobs] if rows.partition else [""] * len(jobs)
    )
    qos, qos_names = _numbered([rows.qos[i] for i in jobs] if rows.qos else [""] * len(jobs))
    reserved = [rows.reservation[i] for i in jobs] if rows.reservation else [""] * len(jobs)
    reservation, reservations = _numbered(reserved)
    licenses, license_names = license_columns([rows.licenses[i] for i in jobs] if rows.licenses else [])
    return workload(
        np.append(head, rows.count),
        {
            "submit_s": rows.submit_s[head] - begin_s,
            "user": np.array([users[name] for name in owners]),
            "time_limit_s": rows.time_limit_s[head],
            "deadline_s": rows.deadline_s[head] - begin_s,
            "slack_s": rows.slack_s[head],
            "checkpointable": np.nan_to_num(rows.checkpointable[head]) != 0,
            "partition": partition,
            "qos": qos,
            "reservation": reservation,
            **({} if rows.unit_memory_gib is None else {"unit_memory_gib": rows.unit_memory_gib[head]}),
            **({"licenses": licenses} if license_names else {}),
        },
        {
            "units": rows.units,
            "time_s": rows.time_s,
            "power_watts": np.where(
                np.isnan(rows.power_watts), watts_per_unit * rows.units, rows.power_watts
            ),
            "hardware": np.array([numbers.get(name, 0) for name in rows.hardware], np.int64),
            "batch": np.nan_to_num(rows.batch, nan=0.0),
        },
        users=tuple(name or "nobody" for name in users),
        names=tuple(rows.name[i] for i in jobs) if any(rows.name) else (),
        partitions=partitions,
        qos_names=qos_names,
        reservations=reservations,
        license_names=license_names,
    )


def _numbered(texts: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Return the distinct texts, and the index of each text among these; an empty text has the index -1."""
    names = [name for name in dict.fromkeys(texts) if name]
    numbers = {"": -1} | {name: number for number, name in enumerate(names)}
    return np.array([numbers[text] for text in texts], np.int64), tuple(names)


def usable(rows: WorkloadRows, problems: InputProblems, kinds: Sequence[str]) -> WorkloadRows:
    """Return the rows of one file that can be simulated.

    Each unusable row is recorded once in `problems`, with the first problem found.

    Args:
        rows: rows of a reader.
        problems: record to which skipped rows are added.
        kinds: names of the kinds of nodes that jobs may use. If empty, jobs may use any kind.
    """
    kept = np.ones(rows.count, np.bool_)
    available = np.array([not name or not kinds or name in kinds for name in rows.hardware], np.bool_)
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
        "the slack is negative": rows.slack_s < 0,
        "the memory is negative": rows.memory_gib() < 0,
        f"the memory is above {_MAX_GIB:.0e} GiB": rows.memory_gib() > _MAX_GIB,
        "the licenses are not as NAME:NUMBER,...": ~_readable_licenses(rows),
        "the batch size is not a whole number from 0 to 1e+09": ~_whole(rows.batch),
        f"hardware that the cluster does not have ({shown(', '.join(kinds))})": ~available,
    }
    times = {
        "time of submission": rows.submit_s,
        "run time": rows.time_s,
        "time limit": rows.time_limit_s,
        "deadline": rows.deadline_s,
        "slack": rows.slack_s,
    }
    excessive = {
        f"the {name} is beyond {_MAX_S:.0e} s{_unit_hint(column)}": np.abs(column) > _MAX_S
        for name, column in times.items()
    }
    for problem, mask in ({**wrong, **excessive}).items():
        problems.skip(problem, (int(n) for n in rows.line[kept & mask]))
        kept &= ~mask
    result = rows.take(kept)
    _warn(result, problems)
    return result


def _readable_licenses(rows: WorkloadRows) -> Bools:
    if not rows.licenses:
        return np.ones(rows.count, np.bool_)
    readable = {text: parse_licenses(text) is not None for text in set(rows.licenses)}
    return np.array([readable[text] for text in rows.licenses], np.bool_)


def _unit_hint(times: Floats) -> str:
    """Return a hint that times may be in milliseconds; empty if this unit is not plausible.

    The unit is plausible if the times, read as milliseconds, are Unix times of recent decades.
    """
    finite = times[np.isfinite(times)]
    plausible = (finite > 3e11) & (finite < 4e12)
    return ": milliseconds? set time_scale = 0.001" if np.sum(plausible) > 0.5 * max(1, len(finite)) else ""


def _whole(values: Floats) -> np.ndarray:
    """Return a mask of the valid entries in a column of counts.

    Valid are unknown values (NaN) and integers within the permitted range.
    """
    whole: np.ndarray = np.isnan(values) | (
        (values >= 0) & (values <= _MAX_UNITS) & (np.floor(values) == values)
    )
    return whole


def _warn(rows: WorkloadRows, problems: InputProblems) -> None:
    """Add a warning for each suspicious row of the workload file.

    Suspicious rows are used nevertheless.
    """
    head = rows.heads()
    unordered = np.flatnonzero(np.diff(rows.submit_s[head]) < 0) + 1
    problems.warn(
        "submitted before the job above it: put in order", (int(n) for n in rows.line[head[unordered]])
    )
    late = rows.deadline_s[head] <= rows.submit_s[head]
    problems.warn("the deadline is not after the submission", (int(n) for n in rows.line[head[late]]))
