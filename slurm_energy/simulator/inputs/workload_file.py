"""Reading of a workload file of any supported format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import UsageError
from slurm_energy.simulator.inputs import swf, tabular
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.workload_rows import build
from slurm_energy.simulator.workload import Workload

FORMATS = ("swf", "csv", "sacct", "sacct-json", "senergy")


@dataclass(frozen=True, slots=True)
class LoadedWorkload:
    """A workload and the problems found in its file."""

    workload: Workload
    problems: InputProblems


def read_workload(
    path: Path,
    kinds: Sequence[str],
    *,
    form: str = "",
    renamed: Mapping[str, str] | None = None,
    watts_per_unit: float = 0.0,
    units: str = "nodes",
    strict: bool = False,
) -> LoadedWorkload:
    """Read a workload file of any supported format.

    Args:
        path: the file.
        kinds: names of the kinds of nodes.
        form: format, one of `FORMATS`; empty: derived from the file name (`.swf`, `.json`, else CSV).
        renamed: by column name of `WorkloadRows`, the name of the column in a CSV file; None: the same names.
        watts_per_unit: power of a job per unit if the file contains no power.
        units: unit of job sizes in accounting files: `nodes`, `cpus`, or `gpus` (`senergy acct` only).
        strict: whether the first unusable line raises an error instead of being skipped.

    Raises:
        UsageError: the file is unreadable, empty, of another format, or without a usable job.
    """
    if form and form not in FORMATS:
        raise UsageError(f"format '{form[:40]}' is not known", todo=f"one of {', '.join(FORMATS)}")
    chosen = form or {".swf": "swf", ".json": "senergy"}.get(path.suffix.lower(), "csv")
    problems = InputProblems(path, strict)
    try:
        if path.stat().st_size == 0:
            raise UsageError(f"{path}", "is empty")
        if chosen == "swf":
            rows = swf.read(path, problems)
        elif chosen in ("sacct-json", "senergy"):
            rows = tabular.read_json(path, problems, units)
        else:
            rows = tabular.read_csv(path, problems, renamed or {}, units)
    except OSError as error:
        todo = "name the workload: --workload FILE, or file in [workload] of the scenario"
        raise UsageError(f"{path}", error.strerror or str(error), todo) from None
    return LoadedWorkload(build(rows, problems, kinds, watts_per_unit), problems)
