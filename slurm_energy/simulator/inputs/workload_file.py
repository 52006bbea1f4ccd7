"""Reader of workload files of any supported format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.simulator.inputs import swf, tabular
from slurm_energy.simulator.inputs.doubtful_rows import without_doubtful_rows
from slurm_energy.simulator.inputs.input_problems import MAX_ROWS, InputProblems
from slurm_energy.simulator.inputs.line_reader import plain_suffix
from slurm_energy.simulator.inputs.trace_selection import FIRST_DATE_S, select
from slurm_energy.simulator.inputs.workload_rows import WorkloadRows, build, merged, usable
from slurm_energy.simulator.scenario_schema import WORKLOAD_FORMATS, TraceSection
from slurm_energy.simulator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class LoadedWorkload:
    """A workload for the simulator, read from files.

    It also contains the problems found in the files, and remarks about the selection of jobs. `begin_s` is
    the time of the first submission on the clock of the files. In the workload, this submission is at time
    0. `without_power` is the number of rows of the selected jobs for which the files state no power.
    `unix_start_s` is the Unix time of time 0 on the clock of the files. It is 0 if this clock shows Unix
    time, or if the files do not state the start.
    """

    workload: Workload
    problems: InputProblems
    remarks: list[str] = field(default_factory=list)
    begin_s: float = 0.0
    without_power: int = 0
    unix_start_s: float = 0.0

    def notes(self) -> list[str]:
        """Return all remarks for the user, one line each."""
        return [*self.problems.report(), *self.remarks]


@dataclass(frozen=True, slots=True)
class WorkloadFormat:
    """Format of workload files, and conversions of the values in them.

    Attributes:
        form: format, one of `WORKLOAD_FORMATS`. If empty, the suffix of the file name selects it (`.swf`,
            `.json`, else CSV).
        renamed: maps column names of `WorkloadRows` to column names in a CSV file.
        watts_per_unit: power of a job per unit in watts if the file contains no power.
        units: unit of job sizes in accounting files: `nodes`, `cpus`, or `gpus`.
        time_scale: factor by which all times are multiplied.
        appended: whether each file begins where the previous file ends. Otherwise all files have the same
            clock.
        max_rows: maximum number of rows of all files.
    """

    form: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    watts_per_unit: float = 0.0
    units: str = "nodes"
    time_scale: float = 1.0
    appended: bool = False
    max_rows: int = MAX_ROWS


def read_workload(
    path: Path | Sequence[Path],
    kinds: Sequence[str],
    how: WorkloadFormat | None = None,
    *,
    selection: TraceSection | None = None,
    seed: int = 0,
    strict: bool = False,
) -> LoadedWorkload:
    """Read one or several workload files of any supported format.

    Args:
        path: the file, or several files whose jobs are merged.
        kinds: names of the kinds of nodes. If empty, the hardware in the files is ignored.
        how: format and conversions; None means the defaults.
        selection: settings that select jobs; None selects all jobs.
        seed: seed of the simulation, for samples.
        strict: whether the first unusable line raises an error instead of being skipped.

    Raises:
        UsageError: a file is unreadable, empty, of another format, or without a usable job.
    """
    how = how or WorkloadFormat()
    paths = [path] if isinstance(path, Path) else list(path)
    if how.form and how.form not in WORKLOAD_FORMATS:
        todo = f"one of {', '.join(WORKLOAD_FORMATS)}"
        raise UsageError(f"format '{how.form[:40]}' is not known", todo=todo)
    problems = InputProblems(paths[0], strict, max_rows=how.max_rows)
    tables: list[WorkloadRows] = []
    for file in paths:
        problems.path = file
        rows = usable(_scaled(_read(file, problems, how), how.time_scale), problems, kinds)
        if not rows.count:
            reasons = [line for line in problems.report() if line.startswith(f"{file}:")]
            raise UsageError(f"{file}", "no job in it that can be simulated", reasons[0] if reasons else "")
        tables.append(rows)
    rows = without_doubtful_rows(merged(_appended(tables) if how.appended else tables), problems, paths)
    unix_start_s = _unix_start_s(paths, how, float(rows.submit_s.min()))
    rows, remarks = select(rows, selection or TraceSection(), seed, unix_start_s)
    begin_s = float(rows.submit_s.min())
    without_power = int(np.sum(np.isnan(rows.power_watts)))
    work = build(rows, kinds, how.watts_per_unit)
    return LoadedWorkload(work, problems, remarks, begin_s, without_power, unix_start_s)


def _unix_start_s(paths: Sequence[Path], how: WorkloadFormat, first_s: float) -> float:
    """Return the Unix time of time 0 on the common clock of the files; 0 if the files do not agree on it.

    The result is also 0 if the first submission, `first_s`, is a date already. Some programs write Unix times
    into SWF files although the header states a start.
    """
    if first_s > FIRST_DATE_S:
        return 0.0
    clocks = paths[:1] if how.appended else paths
    starts = {swf.unix_start_s(path) if _form(path, how) == "swf" else 0.0 for path in clocks}
    return starts.pop() if len(starts) == 1 else 0.0


def _form(path: Path, how: WorkloadFormat) -> str:
    return how.form or {".swf": "swf", ".json": "senergy"}.get(plain_suffix(path), "csv")


def _read(path: Path, problems: InputProblems, how: WorkloadFormat) -> WorkloadRows:
    form = _form(path, how)
    try:
        if path.stat().st_size == 0:
            raise UsageError(f"{path}", "is empty")
        if form == "swf":
            return swf.read(path, problems)
        if form in ("sacct-json", "senergy"):
            return tabular.read_json(path, problems, how.units)
        return tabular.read_csv(path, problems, how.renamed, how.units)
    except OSError as error:
        todo = "name a workload file, on the command line or as file in [workload] of the scenario"
        raise UsageError(f"{path}", error.strerror or str(error), todo) from None


def _scaled(rows: WorkloadRows, factor: float) -> WorkloadRows:
    if factor == 1:
        return rows
    names = ("submit_s", "time_s", "time_limit_s", "deadline_s", "slack_s")
    return replace(rows, **{name: getattr(rows, name) * factor for name in names})


def _appended(tables: Sequence[WorkloadRows]) -> list[WorkloadRows]:
    """Shift the times of several workload tables so that the tables follow one another.

    Each table after the first one begins at the last submission of the previous table. The first table
    keeps its times, which may be dates.
    """
    shifted = [tables[0]]
    for rows in tables[1:]:
        by_s = float(shifted[-1].submit_s.max()) - float(rows.submit_s.min())
        shifted.append(replace(rows, submit_s=rows.submit_s + by_s, deadline_s=rows.deadline_s + by_s))
    return shifted
