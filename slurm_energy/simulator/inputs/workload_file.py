"""Opens a workload file of any known form."""

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
    """A workload and what was wrong with its file."""

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
    """Read a workload.

    Args:
        path: the file.
        kinds: names of the cluster's hardware.
        form: one of FORMATS; empty: by the file's name (`.swf`, `.json`, else CSV).
        renamed: our column's name to the file's, for CSV.
        watts_per_unit: power of a job per unit where the file says none.
        units: what jobs of accounting are counted in: `nodes`, `cpus`, or `gpus` (ours only).
        strict: refuse the file at the first line that cannot be used.

    Raises:
        UsageError: not readable, empty, of another form, or without a usable job.
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
