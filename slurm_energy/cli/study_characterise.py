"""The command `senergy study characterise`.

It shows the classes of jobs, the response curves of the classes, and the missing measurements.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit_fitted, emit_json, note
from slurm_energy.cli.study_command import command_line
from slurm_energy.cli.sweep import add_knobs
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, UnavailableError, UsageError

if TYPE_CHECKING:
    from slurm_energy.study.characterisation.curve_sources import CurveProgram
    from slurm_energy.study.characterisation.planned_sweeps import SweepOutcome
    from slurm_energy.study.directory import StudyDirectory
    from slurm_energy.sweep.runner import SweepLimits
    from slurm_energy.sweep.state import SweepState
    from slurm_energy.tuning.sweep.design import SweepPoint
    from slurm_energy.tuning.sweep.runs import SweepSchedule

_KNOBS = ("gpu_cap", "cap", "cpu_freq", "gpu_clock", "power_profile", "policy")


def configure(parser: CommandParser) -> None:
    """Add the options of `senergy study characterise`."""
    parser.rest_dest = "rest"
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
        "--run",
        action="store_true",
        help="run the planned sweeps as Slurm jobs, within --budget; the same command continues them. "
        "Arguments after -- are options of sbatch",
    )
    parser.add_argument(
        "--script",
        metavar="PROGRAM=FILE",
        action="append",
        default=[],
        help="with --run: batch script of a program of the plan; may be repeated",
    )
    add_knobs(parser.add_argument_group("settings that --run measures beside the untuned job"))
    parser.add_argument(
        "--budget", metavar="NODE_HOURS", type=float, help="node-hours for measurements (default: no limit)"
    )
    parser.add_argument(
        "--classes", metavar="N", type=int, default=8, help="maximum number of classes (default: 8)"
    )
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run `senergy study characterise`, which shows how the programs of a site respond to settings.

    The command classifies the jobs of the baseline. With --run, it also measures programs. It prints the
    classes, the response curves, and the plan of measurements.
    """
    from slurm_energy.study.characterisation.planned_sweeps import stored_sweeps
    from slurm_energy.study.directory import StudyDirectory

    points = _check(args)
    sweeps = dict(_program_file("--sweep", text) for text in args.sweep)
    scripts = dict(_program_file("--script", text) for text in args.script)
    study = StudyDirectory(Path(args.directory))
    study.require("characterise")
    result = _characterise(args, study, sweeps, len(points))
    outcomes = []
    if args.run:
        outcomes = _measure(args, study, points, scripts, result["plan"])
        if any(one.is_stored for one in outcomes):
            result = _characterise(args, study, sweeps, len(points))
    if args.json:
        emit_json(result | {"measured": [asdict(one) for one in outcomes]})
    else:
        emit_fitted([*_lines(result), *_outcome_lines(outcomes, stored_sweeps(study))])
        if result["unmatched_programs"]:
            note(f"{result['unmatched_programs']} learned programs have no job in the baseline")
    return EXIT_FAILURE if any(not one.is_stored for one in outcomes) else EXIT_OK


def _check(args: argparse.Namespace) -> tuple[SweepPoint, ...]:
    """Check the options of the command, and return the combinations of settings to measure.

    The result is empty if the command measures nothing.
    """
    if not 1 <= args.classes <= 50:
        raise UsageError("--classes", "must be from 1 to 50")
    if args.budget is not None and not args.budget >= 0:
        raise UsageError("--budget", "must not be negative")
    given = [name for name in ("script", *_KNOBS, "rest") if getattr(args, name)]
    if not args.run:
        if given:
            name = "--" if given[0] == "rest" else f"--{given[0].replace('_', '-')}"
            raise UsageError(name, "belongs to --run", "leave it out, or add --run")
        return ()
    if not args.script:
        raise UsageError("--run", "names no program", "--script USER/NAME=SCRIPT with a program of the plan")
    if args.budget is None:
        raise UsageError("--run", "has no bound", "--budget NODE_HOURS")
    from slurm_energy.cli import sweep
    from slurm_energy.tuning.sweep.design import build_points

    factors = sweep.read_knobs(args)
    if not factors:
        raise UsageError("--run", "has no setting to vary", "such as --gpu-cap 200..360:40")
    return build_points(factors)


def _characterise(
    args: argparse.Namespace, study: StudyDirectory, sweeps: Mapping[str, Path], settings: int
) -> dict[str, Any]:
    """Run the study's step `characterise` with all known response curves, and return its result.

    The step divides the jobs into classes and assigns response curves to the classes.
    """
    from slurm_energy.study.characterisation.characterise import SETTINGS, run_characterise
    from slurm_energy.study.characterisation.curve_sources import read_curves, read_sweep_curve
    from slurm_energy.study.characterisation.planned_sweeps import stored_sweeps

    programs = read_curves(args.curves) if args.curves else _learned(args)
    files = {**({"curves": args.curves} if args.curves else {}), **stored_sweeps(study), **sweeps}
    measured = {program: path for program, path in files.items() if program != "curves"}
    # Measured curves come last: they replace learned ones of the same program.
    programs += [read_sweep_curve(program, path) for program, path in measured.items()]
    return run_characterise(
        study,
        programs,
        command_line(),
        files=files,
        budget_node_hours=math.inf if args.budget is None else args.budget,
        max_classes=args.classes,
        settings=settings or SETTINGS,
    )


def _measure(
    args: argparse.Namespace,
    study: StudyDirectory,
    points: Sequence[SweepPoint],
    scripts: Mapping[str, Path],
    plan: Sequence[Mapping[str, Any]],
) -> list[SweepOutcome]:
    """Run, or continue, the planned sweeps for which a batch script is given."""
    from slurm_energy.cli import sweep
    from slurm_energy.cli.sweep_output import ProgressBar
    from slurm_energy.study.characterisation.planned_sweeps import PlannedSweeps, stored_sweeps, sweep_orders

    bars: dict[str, ProgressBar] = {}

    def report(state: SweepState, limits: SweepLimits, schedule: SweepSchedule) -> None:
        bar = bars.setdefault(state.name, ProgressBar(state, limits))
        bar.report(schedule)
        if schedule.is_complete:
            bar.end()

    orders = sweep_orders(plan, scripts, stored_sweeps(study))
    with study.locked("characterise --run"):
        sweeps = PlannedSweeps(
            study,
            points,
            args.rest,
            args.budget,
            lambda submitter: sweep.cluster_access(submitter, args),
            report,
        )
        return sweeps.run(orders)


def _learned(args: argparse.Namespace) -> list[CurveProgram]:
    """Return the programs whose response curves senergyctld has learned.

    A response curve states the time and power of a program at several settings. The result is empty if
    senergyctld does not answer.
    """
    from slurm_energy.study.characterisation.curve_sources import curve_programs

    try:
        return curve_programs(connection.connect(args).get("/v1/tuning", {}))
    except UnavailableError as error:
        note(f"no response curves: {error}")
        return []


def _program_file(option: str, text: str) -> tuple[str, Path]:
    program, equals, name = text.rpartition("=")
    if not equals or "/" not in program or not name:
        raise UsageError(f"{option} {text[:60]}", "is not USER/NAME=FILE", "take PROGRAM from the plan")
    return program, Path(name)


def _outcome_lines(outcomes: Sequence[SweepOutcome], stored: Mapping[str, Path]) -> list[str]:
    lines = [
        f"measured {one.program}: {one.runs} runs, {one.node_hours:,.2f} node-hours: "
        + (f"{stored[one.program]}" if one.is_stored else f"not complete: {one.why}")
        for one in outcomes
    ]
    return ["", *lines] if lines else []


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
    return [
        *lines,
        "",
        f"Measurements within the budget take {result['planned_node_hours']:,.1f} node-hours. Run them with "
        "the batch scripts of the programs:",
        "  --run --budget NODE_HOURS --script PROGRAM=SCRIPT --gpu-cap WATTS,...",
        "or give the result of a sweep:  --sweep PROGRAM=FILE",
    ]
