"""Values of a batch template from a saved sweep of the same program.

The values are those of the best point of the sweep: threads, processes, batch size, and hardware settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.cli.output import note
from slurm_energy.errors import EnergyError, NotFoundError, UsageError
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.sweep.state import SweepState
    from slurm_energy.templates import Template
    from slurm_energy.tuning.objective import Objective
    from slurm_energy.tuning.sweep.result import PointResult, SweepResult

_PATTERN = "senergy-sweep-*.json"
_KEY_OF_PROGRAM = "script"
"""Key of a template that names the Python file of the program."""


@dataclass(frozen=True, slots=True)
class SavedSweep:
    """A saved sweep of a program whose reference point has been measured.

    Attributes:
        path: state file of the sweep.
        state: state of the sweep.
        result: result of the sweep so far.
    """

    path: Path
    state: SweepState
    result: SweepResult


def is_swept(template: Template) -> bool:
    """Return whether the template has variables whose best values a sweep determines."""
    return any(variable.sweep for variable in template.variables)


def saved_sweep(args: argparse.Namespace, template: Template, given: dict[str, str]) -> SavedSweep | None:
    """Return the newest saved sweep of a program, for a template that starts this program.

    The result is None if no sweep is saved.

    Args:
        args: command line of `senergy template render`. `sweep` names a state file. If `sweep` is None,
            the current folder and the folder of the output are searched for a state file.
        template: template to be rendered.
        given: values of template variables that the user set by --set, for example the program.

    Raises:
        NotFoundError: the named state file does not exist, or has no measurement.
        UsageError: the named file is not the state of a sweep, or the template does not use sweeps.
    """
    if args.sweep is not None:
        if not is_swept(template):
            raise UsageError("--sweep", f"template {template.name} has no variable that a sweep determines")
        sweep = _load(args.sweep)
        if sweep is None:
            why = "has no measurement of the reference" if args.sweep.exists() else "there is no such file"
            raise NotFoundError(str(args.sweep), why, "run senergy sweep first")
        return sweep
    program = Path(given.get(_KEY_OF_PROGRAM, "")).name
    if not is_swept(template) or not program:
        return None
    folders = {Path(), *([args.output.parent] if args.output else [])}
    paths = {path.resolve(): path for folder in folders for path in folder.glob(_PATTERN)}
    for path in sorted(paths.values(), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            sweep = _load(path)
        except EnergyError as error:
            note(f"not used: {error}")
            continue
        if sweep is not None and program in sweep.state.programs:
            return sweep
    return None


def _load(path: Path) -> SavedSweep | None:
    """Return a saved sweep (series of runs at different settings).

    None means that there is no file, or that the run at the reference settings was not measured.
    """
    from slurm_energy.sweep import state as states
    from slurm_energy.tuning.sweep.result import sweep_result

    state = states.load(path)
    if state is None:
        return None
    result = sweep_result(state.name, state.points, state.runs, max(1, state.repetitions))
    return None if result.reference.summary is None else SavedSweep(path, state, result)


def sweep_values(sweep: SavedSweep, objective: Objective, template: Template) -> dict[str, str]:
    """Return the value of each template variable at the best sweep point.

    Print the source of the values.

    Args:
        sweep: saved sweep of the program.
        objective: quantity that the settings minimise (energy, EDP or ED2P), with the maximum
            slowdown relative to the reference point of the sweep.
        template: template to be rendered.
    """
    from slurm_energy.tuning.sweep.requested_settings import requested_settings

    best = _best(sweep.result, objective)
    options = requested_settings(best.point).options
    values = {}
    for variable in template.variables:
        value = best.point.value(variable.sweep) if variable.sweep else options.get(variable.option)
        if value is not None:
            values[variable.name] = value
    note(_source(sweep, objective, best, values))
    filled = {variable.sweep for variable in template.variables}
    if missing := _other_settings(sweep.result, best, filled):
        note(f"the template has no place for: {', '.join(missing)}")
    return values


def _best(result: SweepResult, objective: Objective) -> PointResult:
    """Return the measured sweep point with the lowest objective value within the slowdown limit."""
    reference = result.reference.summary
    assert reference is not None

    def ratios(point: PointResult) -> tuple[float, float]:
        assert point.summary is not None
        time_ratio = point.summary.time_s.mean / reference.time_s.mean
        return time_ratio, point.summary.energy_joules.mean / reference.energy_joules.mean / time_ratio

    measured = [point for point in result.points if point.summary is not None]
    allowed = [point for point in measured if objective.allows(ratios(point)[0])]
    return min(allowed or [result.reference], key=lambda point: objective.cost(*ratios(point)))


def _other_settings(result: SweepResult, best: PointResult, filled: Collection[str]) -> list[str]:
    """Return settings of the best sweep point that the batch template does not set, as NAME=VALUE.

    Only environment variables and sbatch options are returned. Two settings may have the same value at every
    sweep point, for example two variables that both state the number of threads. At most one of such
    settings is returned, and none if the template already sets one of them.
    """
    columns = {
        column[0][0]: tuple(value for _, value in column)
        for column in zip(*(point.point.settings for point in result.points), strict=True)
    }
    seen = {values for name, values in columns.items() if name in filled}
    others = []
    for name, value in best.point.settings:
        if name.startswith(("env.", "sbatch.")) and value is not None and columns[name] not in seen:
            seen.add(columns[name])
            others.append(f"{name}={value}")
    return others


def _source(sweep: SavedSweep, objective: Objective, best: PointResult, values: dict[str, str]) -> str:
    """Return a sentence that names the sweep from which the values of a batch script come.

    The sentence also states how much time and energy the values change.
    """
    reference, summary = sweep.result.reference.summary, best.summary
    assert reference is not None
    assert summary is not None
    settings = ", ".join(f"{name}={shown(value)}" for name, value in values.items()) or "no setting"
    changes = (
        f"time {100 * (summary.time_s.mean / reference.time_s.mean - 1):+.0f} %, "
        f"energy {100 * (summary.energy_joules.mean / reference.energy_joules.mean - 1):+.0f} %"
    )
    day = datetime.fromtimestamp(sweep.path.stat().st_mtime).date()
    measured = sum(point.summary is not None for point in sweep.result.points)
    runs = "1 run" if summary.runs == 1 else f"{summary.runs} runs"
    state = "" if sweep.result.is_complete else ", not complete"
    return (
        f"{settings}: best {objective.name} of {measured} measured points of sweep {sweep.state.name}"
        f" ({sweep.path}, {day}, {runs}{state}); {changes} relative to its reference"
    )
