"""`senergy tune characterise`: measure a node's response to settings with reference kernels."""

from __future__ import annotations

import argparse
import json
import os
import stat
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy import atomic_file
from slurm_energy.cli import connection, sweep
from slurm_energy.cli.output import emit, emit_json, note
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EnergyError, UsageError

if TYPE_CHECKING:
    from slurm_energy.sweep.characterisation import ClassSweep, NodeRequest
    from slurm_energy.tuning.sweep.result import SweepResult

HELP = "measure a node's response to settings with reference kernels"
_CLASSES = "compute,memory,host"
_MAX_PLAN_BYTES = 1 << 20


def configure(parser: CommandParser) -> None:
    """Add the options to `senergy tune characterise`."""
    parser.rest_dest = "rest"
    parser.add_argument(
        "-w", "--nodelist", metavar="NODE", required=True, help="the node; its jobs have it alone"
    )
    parser.add_argument("--gpu", action="store_true", help="kernels on the node's GPUs, with PyTorch")
    parser.add_argument(
        "--time", metavar="MINUTES", type=float, default=20.0, help="time for all jobs together (at most 20)"
    )
    parser.add_argument("--classes", default=_CLASSES, help=f"classes of kernels (default {_CLASSES})")
    parser.add_argument(
        "--kernel",
        metavar="CLASS=COMMAND",
        action="append",
        default=[],
        help="own kernel for a class: a command with a fixed amount of work; {seconds}: its run time",
    )
    knobs = parser.add_argument_group("knob, one of (default: GPU power limit, or CPU frequency)")
    sweep.add_knobs(knobs)
    parser.add_argument("--dir", metavar="DIR", type=Path, help="folder (default senergy-characterise-NODE)")
    parser.add_argument("--restart", action="store_true", help="discard the results in the folder")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Measure how a node responds to settings, and print one table per class of compute kernels.

    The measurement (characterisation) runs a reference kernel of each class as Slurm jobs on the node.
    """
    from slurm_energy.sweep import characterisation

    if not 0 < args.time <= characterisation.MAX_MINUTES:
        raise UsageError(
            f"--time {args.time:g}", "is out of bounds", f"1 to {characterisation.MAX_MINUTES} minutes"
        )
    if os.geteuid() != 0:
        note("only runs of root and of controller.agent_users become the site's curves")
    end_s = time.monotonic() + 60.0 * args.time
    folder = args.dir or Path(f"senergy-characterise-{args.nodelist}")
    request = characterisation.NodeRequest(args.nodelist, args.gpu, tuple(args.rest))
    cpus, gpus = characterisation.node_size(args.nodelist)
    if args.gpu and not gpus:
        raise UsageError("--gpu", f"node {args.nodelist} has no GPU according to Slurm")
    plan = _plan(args, folder, request, (cpus, gpus))
    minutes = characterisation.job_minutes(plan["seconds"])
    options = request.job_options(minutes, cpus, gpus)
    results = {
        item.name: _run_class(item, folder, options, args, end_s - 60.0 * minutes) for item in _classes(plan)
    }
    complete = all(result.is_complete for result in results.values())
    if args.json:
        emit_json({"node": args.nodelist, "classes": {name: r.to_json() for name, r in results.items()}})
    else:
        _print(results)
    if not complete:
        note(f"the time is up: the same command continues ({folder})")
    return EXIT_OK if all(result.is_successful for result in results.values()) else EXIT_FAILURE


def _plan(
    args: argparse.Namespace, folder: Path, request: NodeRequest, size: tuple[int, int]
) -> dict[str, Any]:
    """Return the plan of a characterisation (measurement of a node) that is stored in a folder.

    If the folder has no plan, a new plan is made from a description of the node, and stored.
    """
    from slurm_energy.sweep import characterisation
    from slurm_energy.sweep.reference_kernels import CLASSES

    wanted: dict[str, Any] = {
        "node": request.node,
        "gpu": request.gpu,
        "options": list(request.options),
        "classes": [name for name in args.classes.split(",") if name],
        "kernels": characterisation.parse_kernels(args.kernel),
        "knobs": [[factor.name, list(factor.values)] for factor in sweep.read_knobs(args)],
    }
    unknown = set(wanted["classes"]) - set(CLASSES)
    if unknown or not wanted["classes"]:
        raise UsageError(f"--classes {args.classes}", f"the classes are {_CLASSES}")
    if len(wanted["knobs"]) > 1:
        raise UsageError("senergy tune characterise", "several knobs given", "vary one knob at a time")
    path = folder / "plan.json"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        _refuse_shared(folder)
        if path.exists() and not args.restart:
            return _stored_plan(path, wanted)
        for old in folder.glob("*.json"):
            old.unlink()
        plan = {"wanted": wanted, **_new_plan(args, request, wanted, size)}
        atomic_file.write(path, json.dumps(plan, indent=1).encode() + b"\n", mode=0o644)
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), "name another folder with --dir") from None
    return plan


def _refuse_shared(folder: Path) -> None:
    """Raise an error if another user can replace the caller's batch scripts in a folder.

    Raises:
        EnergyError: the folder is a link, belongs to another user, or others may write to it.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        why = "is a link, belongs to another user, or is writable for others"
        raise EnergyError(str(folder), why, "name another folder with --dir")


def _stored_plan(path: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the stored plan of a characterisation that was interrupted, so that it can continue.

    A characterisation measures how a kind of hardware responds to settings.

    Raises:
        EnergyError: the file is not a plan.
        OSError: the file cannot be read, or belongs to another user.
        UsageError: the plan belongs to another characterisation.
    """
    try:
        plan: dict[str, Any] = json.loads(atomic_file.read(path, _MAX_PLAN_BYTES))
        is_other = plan["wanted"] != wanted
        scripts = [item.script for item in _classes(plan)]
        if not all(isinstance(script, str) for script in scripts) or float(plan["seconds"]) <= 0:
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, UsageError):
        raise EnergyError(
            str(path), "is not the plan of a characterisation", "--restart discards it"
        ) from None
    if is_other:
        raise UsageError(str(path), "another characterisation was started there", "--restart discards it")
    return plan


def _new_plan(
    args: argparse.Namespace, request: NodeRequest, wanted: dict[str, Any], size: tuple[int, int]
) -> dict[str, Any]:
    from slurm_energy.sweep import characterisation
    from slurm_energy.tuning.sweep.factors import make_factor

    own_kernels = set(wanted["classes"]) - set(wanted["kernels"])
    description: dict[str, Any] = {"units_per_s": {}}
    if own_kernels or not wanted["knobs"]:
        description = characterisation.describe_node(request, *size, measure=bool(own_kernels))
    if wanted["knobs"]:
        ((name, values),) = wanted["knobs"]
        factor = make_factor(name, [value for value in values if value is not None])
    else:
        bounds = connection.configuration(args).accepted_bounds
        factor = characterisation.default_factor(description, bounds, gpu=request.gpu)
    seconds = characterisation.kernel_seconds(args.time, len(wanted["classes"]) * (1 + len(factor.values)))
    sweeps = [
        characterisation.class_sweep(
            name,
            factor,
            seconds,
            gpu=request.gpu,
            command=wanted["kernels"].get(name),
            units_per_s=description["units_per_s"].get(name),
        )
        for name in wanted["classes"]
    ]
    return {
        "seconds": seconds,
        "factor": [factor.name, list(factor.values)],
        "scripts": {item.name: item.script for item in sweeps},
    }


def _classes(plan: dict[str, Any]) -> list[ClassSweep]:
    from slurm_energy.sweep.characterisation import ClassSweep
    from slurm_energy.tuning.sweep.factors import make_factor

    name, values = plan["factor"]
    factor = make_factor(name, values)
    return [ClassSweep(kernel, script, factor) for kernel, script in plan["scripts"].items()]


def _run_class(
    item: ClassSweep, folder: Path, options: list[str], args: argparse.Namespace, deadline_s: float
) -> SweepResult:
    """Run the jobs for one class of kernels, one after another, and return the result of the sweep."""
    from slurm_energy.cli.sweep_output import ProgressBar
    from slurm_energy.sweep import state as states
    from slurm_energy.sweep.runner import SweepLimits, SweepRunner
    from slurm_energy.sweep.submission import Submitter, read_given_options
    from slurm_energy.tuning.sweep.design import build_points
    from slurm_energy.tuning.sweep.result import sweep_result

    script, path = folder / f"{item.name}.sh", folder / f"{item.name}.json"
    content = item.script.encode()
    try:
        atomic_file.write(script, content, mode=0o644)
    except OSError as error:
        raise EnergyError(
            str(script), error.strerror or str(error), "name another folder with --dir"
        ) from None
    given = read_given_options(str(script), content, options, build_points([item.factor]))
    if "output" not in given:
        options = [*options, "--output=/dev/null"]
    wanted = states.SweepState(
        item.name, item.tag, states.digest(content), tuple(options), (), build_points([item.factor])
    )
    with states.locked(path):
        state = states.load(path) or wanted
        state.refuse_other(wanted, path)
        limits = SweepLimits(1, 1, deadline_s=deadline_s)
        progress = ProgressBar(state, limits)
        access = sweep.cluster_access(Submitter(state, str(script), given), args)
        try:
            SweepRunner(state, access, limits, partial(states.save, state, path), progress.report).run()
        finally:
            progress.end()
    return sweep_result(item.name, state.points, state.runs, 1)


def _print(results: dict[str, SweepResult]) -> None:
    from slurm_energy.reports import sweep_table

    for name, result in results.items():
        emit([f"class {name}", *sweep_table.table_lines(result), ""])
