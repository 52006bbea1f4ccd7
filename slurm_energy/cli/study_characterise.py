"""`senergy study characterise`: classes of jobs, their response curves, and measurements that are missing."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit_fitted, emit_json, note
from slurm_energy.cli.study_command import command_line
from slurm_energy.errors import EXIT_OK, UnavailableError, UsageError

if TYPE_CHECKING:
    from slurm_energy.study.curve_sources import CurveProgram


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy study characterise`."""
    parser.add_argument(
        "--curves",
        metavar="FILE",
        type=Path,
        help="response curves: output of senergy tune show --json (default: those of senergyctld)",
    )
    parser.add_argument(
        "--sweep",
        metavar="PROGRAM=FILE",
        action="append",
        default=[],
        help="response curve of a program, as USER/NAME in the plan: output of senergy sweep --json; "
        "may be repeated",
    )
    parser.add_argument(
        "--budget", metavar="NODE_HOURS", type=float, help="node-hours for measurements (default: no limit)"
    )
    parser.add_argument(
        "--classes", metavar="N", type=int, default=8, help="maximum number of classes (default: 8)"
    )
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Classify the jobs of the baseline, and print classes, curves and plan."""
    from slurm_energy.study.characterise import run_characterise
    from slurm_energy.study.curve_sources import read_curves, read_sweep_curve
    from slurm_energy.study.directory import StudyDirectory

    if not 1 <= args.classes <= 50:
        raise UsageError("--classes", "must be from 1 to 50")
    if args.budget is not None and not args.budget >= 0:
        raise UsageError("--budget", "must not be negative")
    sweeps = dict(_sweep(text) for text in args.sweep)
    study = StudyDirectory(Path(args.directory))
    study.require("characterise")
    programs = read_curves(args.curves) if args.curves else _learned(args)
    # Measured curves come last: they replace learned ones of the same program.
    programs += [read_sweep_curve(program, path) for program, path in sweeps.items()]
    files = {"curves": args.curves} if args.curves else {}
    result = run_characterise(
        study,
        programs,
        command_line(),
        files=files | sweeps,
        budget_node_hours=math.inf if args.budget is None else args.budget,
        max_classes=args.classes,
    )
    if args.json:
        emit_json(result)
        return EXIT_OK
    emit_fitted(_lines(result))
    if result["unmatched_programs"]:
        note(f"{result['unmatched_programs']} learned programs have no job in the baseline")
    return EXIT_OK


def _learned(args: argparse.Namespace) -> list[CurveProgram]:
    """Return the programs that senergyctld has learned; none if it does not answer."""
    from slurm_energy.study.curve_sources import curve_programs

    try:
        return curve_programs(connection.connect(args).get("/v1/tuning", {}))
    except UnavailableError as error:
        note(f"no response curves: {error}")
        return []


def _sweep(text: str) -> tuple[str, Path]:
    program, equals, name = text.rpartition("=")
    if not equals or "/" not in program or not name:
        raise UsageError(f"--sweep {text[:60]}", "is not USER/NAME=FILE", "take PROGRAM from the plan")
    return program, Path(name)


def _lines(result: dict[str, Any]) -> list[str]:
    lines = [f"{'Energy':>7} {'Jobs':>8} {'Node-hours':>11} {'Settings':>8}  Class"]
    for one in result["classes"]:
        figures = f"{one['energy_share']:>7.1%} {one['jobs']:>8} {one['node_hours']:>11,.1f}"
        lines.append(f"{figures} {len(one['points']) or '-':>8}  {one['name']}")
    lines += ["", f"Response curves cover {result['covered_energy']:.0%} of the energy of jobs."]
    if not result["plan"]:
        return lines
    lines += ["", f"{'Energy':>7} {'Runs':>5} {'Node-hours':>11} {'Budget':>7}  Missing: class, program"]
    for item in result["plan"]:
        within = "within" if item["in_budget"] else "beyond"
        lines.append(
            f"{item['energy_share']:>7.1%} {item['runs']:>5} {item['node_hours']:>11,.1f} {within:>7}  "
            f"{item['class']}: {item['program']}"
        )
    lines += [
        "",
        f"Measurements within the budget take {result['planned_node_hours']:,.1f} node-hours. None runs by "
        "itself.",
        "Measure a program with its batch script:  "
        "senergy sweep SCRIPT --gpu-cap WATTS,... --repeat 2 --json > FILE",
        "and run this step again with:             --sweep PROGRAM=FILE",
    ]
    return lines
