"""Sweeps of programs that the step `characterise` plans. The sweeps run as Slurm jobs.

The node-hours of all sweeps are limited.

An interrupted sweep can be continued. The state and the result of each program are in `characterise/sweeps`
of the study. Every later run of the step uses a stored result.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from slurm_energy import atomic_file
from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.slurm.sbatch import RefusedError
from slurm_energy.study.characterisation.characterise import REPEATS
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.step_run import FILE_MODE
from slurm_energy.sweep import state as states
from slurm_energy.sweep.runner import SweepCluster, SweepLimits, SweepRunner
from slurm_energy.sweep.state import SweepState
from slurm_energy.sweep.submission import Submitter, read_given_options
from slurm_energy.tuning.sweep.design import SweepPoint
from slurm_energy.tuning.sweep.result import sweep_result
from slurm_energy.tuning.sweep.runs import SweepRun, SweepSchedule

_FOLDER: Final = "sweeps"
_IN_FLIGHT: Final = 4
_BEYOND: Final = "beyond the node-hours of --budget"
Report = Callable[[SweepState, SweepLimits, SweepSchedule], None]


@dataclass(frozen=True, slots=True)
class SweepOrder:
    """A request to run a planned sweep.

    Attributes:
        program: program of the jobs, as `USER/NAME`.
        script: batch script of the program.
        nodes: number of nodes of a run.
        run_node_hours: expected node-hours of one run.
    """

    program: str
    script: Path
    nodes: float
    run_node_hours: float


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """Outcome of a sweep that an energy study has planned.

    Attributes:
        program: program of the jobs.
        runs: number of runs that have ended.
        node_hours: node-hours of all runs of the sweep. Runs that have not ended count with their expected
            node-hours.
        is_stored: whether the result is stored as the response curve of the program.
        why: reason why the result is not stored; an empty value means that the result is stored.
    """

    program: str
    runs: int
    node_hours: float
    is_stored: bool
    why: str = ""


def stored_sweeps(study: StudyDirectory) -> dict[str, Path]:
    """Return the files with the measured response curves of a study, by program.

    There is one file per program, with the result of a sweep.

    Raises:
        UsageError: a file is damaged.
    """
    found = {}
    for path in sorted(_folder(study).glob("*.result.json")):
        try:
            found[str(json.loads(path.read_text(encoding="utf-8"))["program"])] = path
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"is not a sweep of this study: {error!r}"
            raise UsageError(f"{path}", why, "remove it; --run measures again") from None
    return found


class PlannedSweeps:
    """Runner of the sweeps that a study has planned, one sweep after another.

    A sweep measures the jobs of one program at several settings.

    Args:
        study: directory of the study. The caller holds the lock of the study.
        points: settings to measure. The first setting is the reference.
        options: further options of sbatch.
        budget_node_hours: node-hours that all sweeps may take, including the node-hours of earlier runs.
        access: function that is called with the submitter of jobs, and returns the access to Slurm and to
            the energy records.
        report: function that is called after each round with the state of the sweep, the limits and the
            schedule.
    """

    def __init__(
        self,
        study: StudyDirectory,
        points: Sequence[SweepPoint],
        options: Sequence[str],
        budget_node_hours: float,
        access: Callable[[Submitter], SweepCluster],
        report: Report = lambda state, limits, schedule: None,
    ) -> None:
        self._points, self._options = tuple(points), tuple(options)
        self._budget, self._access, self._report = budget_node_hours, access, report
        self._path = _folder(study)
        self._spent: dict[str, float] = {}
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnergyError(f"{self._path}", error.strerror or str(error)) from None

    def run(self, orders: Sequence[SweepOrder]) -> list[SweepOutcome]:
        """Run or continue sweeps, one after another.

        Raises:
            EnergyError: a script cannot be read, its options cannot be swept, or Slurm does not answer.
        """
        for order in orders:  # what earlier sweeps took counts before the first job is submitted
            state = states.load(self._state_path(order.program))
            self._spent[order.program] = _spent(state.runs, order) if state else 0.0
        return [self._run(order) for order in orders]

    def _state_path(self, program: str) -> Path:
        return self._path / f"{_slug(program)}.state.json"

    def _run(self, order: SweepOrder) -> SweepOutcome:
        try:
            content = order.script.read_bytes()
        except OSError as error:
            raise UsageError(f"{order.script}", error.strerror or str(error), "name a batch script") from None
        given = read_given_options(str(order.script), content, self._options, self._points)
        if (given.get("nodes") or "").isdecimal():
            nodes = float(given["nodes"] or 1)
            order = replace(order, nodes=nodes, run_node_hours=order.run_node_hours * nodes / order.nodes)
        name = _slug(order.program)
        wanted = SweepState(
            name, f"senergy-sweep/{name}", states.digest(content), self._options, (), self._points
        )
        path = self._state_path(order.program)
        with states.locked(path):
            state = states.load(path) or wanted
            state.refuse_other(wanted, path)
            state.repetitions = REPEATS
            state.runs = [run for run in state.runs if run.note != _BEYOND]
            submitter = Submitter(state, str(order.script), given)
            self._measure(order, state, submitter, path)
            return self._outcome(order, state)

    def _measure(self, order: SweepOrder, state: SweepState, submitter: Submitter, path: Path) -> None:
        others = sum(hours for program, hours in self._spent.items() if program != order.program)
        fitting = (self._budget - others - self._spent[order.program]) / order.run_node_hours
        in_flight = int(max(1.0, min(_IN_FLIGHT, fitting)))  # runs that take less than expected leave room
        cluster, limits = self._access(submitter), SweepLimits(REPEATS, in_flight)

        def submit(point: SweepPoint, job_name: str) -> int:
            if others + _spent(state.runs, order) > self._budget:
                raise RefusedError(_BEYOND)
            return cluster.submit(point, job_name)

        runner = SweepRunner(
            state,
            replace(cluster, submit=submit),
            limits,
            partial(states.save, state, path),
            lambda schedule: self._report(state, limits, schedule),
        )
        runner.run()
        self._spent[order.program] = _spent(state.runs, order)

    def _outcome(self, order: SweepOrder, state: SweepState) -> SweepOutcome:
        ended = [run for run in state.runs if not run.is_in_flight and run.note != _BEYOND]
        result = sweep_result(state.name, state.points, state.runs, REPEATS)
        why = ""
        if any(run.note == _BEYOND for run in state.runs):
            why = _BEYOND
        elif not result.is_complete or result.reference.summary is None:
            missing = "the reference has no measurement"
            why = next((run.note for run in reversed(state.runs) if run.note), missing)
        else:
            document = {"program": order.program, **result.to_json()}
            target = self._path / f"{state.name}.result.json"
            atomic_file.write(target, json.dumps(document, indent=1).encode() + b"\n", mode=FILE_MODE)
        return SweepOutcome(order.program, len(ended), self._spent[order.program], not why, why)


def sweep_orders(
    plan: Sequence[Mapping[str, Any]], scripts: Mapping[str, Path], measured: Mapping[str, Path]
) -> list[SweepOrder]:
    """Return the sweeps to run: those sweeps of a plan for whose programs the user gives a script.

    Args:
        plan: plan of the step `characterise`.
        scripts: batch scripts by program.
        measured: programs with a stored response curve, which need no sweep.

    Raises:
        UsageError: a script belongs to no planned program, or its sweep needs more node-hours than are left.
    """
    planned = {str(item["program"]): item for item in plan}
    orders = []
    for program, script in scripts.items():
        item = planned.get(program)
        if item is None:
            if program in measured:
                continue
            todo = f"one of {', '.join(planned)}" if planned else "no measurement is missing"
            raise UsageError(f"--script {program[:60]}", "is not in the plan", todo)
        if not item["in_budget"]:
            why = f"its sweep takes {item['node_hours']:,.1f} node-hours, which do not fit"
            raise UsageError(f"--script {program[:60]}", why, "use a larger --budget, or fewer values")
        hours = item["node_hours"] / item["runs"]
        orders.append(SweepOrder(program, script, item["nodes"], hours))
    return orders


def _folder(study: StudyDirectory) -> Path:
    return study.folder("characterise") / _FOLDER


def _slug(program: str) -> str:
    """Return a name for the files and tags of a program's sweep.

    The name begins with readable characters of the program's name. A digest of the full name makes the
    result unique.
    """
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", program)[:24].strip("-.")
    return f"{readable}-{hashlib.sha256(program.encode()).hexdigest()[:8]}"


def _spent(runs: Sequence[SweepRun], order: SweepOrder) -> float:
    """Return the node-hours that the runs of a sweep have used.

    A run without a measured time counts with its expected time. A run that Slurm refused does not count.
    """
    hours = [
        run.time_s * order.nodes / 3600 if run.time_s is not None else order.run_node_hours
        for run in runs
        if run.is_in_flight or run.job_id is not None
    ]
    return math.fsum(hours)
