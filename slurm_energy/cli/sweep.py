"""`senergy sweep`: run a job at several settings and compare time, energy, EDP and EDS."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection, sweep_preset
from slurm_energy.cli.output import note
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, UsageError
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.sweep.runner import SweepCluster
    from slurm_energy.sweep.state import SweepState
    from slurm_energy.sweep.submission import Submitter
    from slurm_energy.tuning.sweep.factors import Factor
    from slurm_energy.tuning.sweep.result import SweepResult

HELP = "run a job at several settings and find the best by energy, EDP and EDS"
DEFAULT_REPETITIONS = 3
DEFAULT_IN_FLIGHT = 4
MAX_REPETITIONS, MAX_IN_FLIGHT, MAX_RUNS = 100, 500, 10_000

EPILOG = """\
Every combination of the values, a point, runs as a job of its own, in --repeat repetitions. The first line of
the result is the reference: every knob unset, policy monitor, the first value of every other factor. Gains
are in percent relative to the reference. A point is not repeated if it is slower and needs more energy than
another point, beyond noise. Arguments after -- are options of sbatch; arguments after a second -- are
arguments of the script.

values: lists and ranges, 100..250:50 or 100,150,200; none leaves a knob unset
state:  the file senergy-sweep-NAME.json; the same command continues an interrupted sweep

examples:
  senergy sweep job.sh --gpu-cap 100..400:50
  senergy sweep job.sh --gpu-cap 100..260:10 --repeat 10 --plots plots -- -p gpu --exclusive
  senergy sweep job.sh --cap 200W,300W --env LR=0.1,0.01 --threads 8,16 --in-flight 2
  senergy sweep job.sh --policy monitor,powersave,edp --repeat 5 --json
  senergy sweep job.sh --factors factors.toml --dry-run
  senergy sweep train.sh --preset pytorch --vary cores=4,8,16 --cpu-freq 1.6GHz,2.4GHz --best energy
  senergy sweep train.sh --preset pytorch-ddp --machine 28x2 --dry-run
  senergy sweep job.sh --gpu-cap 100..400:50 --cancel
"""


def configure(parser: CommandParser) -> None:
    """Add the options to `senergy sweep`."""
    parser.epilog = EPILOG
    parser.rest_dest = "rest"
    parser.add_argument("script", metavar="SCRIPT", help="batch script, as for sbatch")
    factors = parser.add_argument_group("factors")
    add_knobs(factors)
    factors.add_argument(
        "--env",
        metavar="NAME=VALUE,...",
        action="append",
        default=[],
        help="values of a variable of the environment",
    )
    factors.add_argument("--batch-size", metavar="N,...", help="values of $BATCH_SIZE")
    factors.add_argument("--threads", metavar="N,...", help="values of $OMP_NUM_THREADS")
    factors.add_argument("--precision", metavar="NAME,...", help="values of $PRECISION, e.g. fp32,bf16")
    factors.add_argument(
        "--factors", metavar="FILE", type=Path, help="TOML file of factors, with [env] and [sbatch] tables"
    )
    sweep_preset.add_options(factors)
    factors.add_argument(
        "--no-reference", action="store_true", help="use the first combination of values as the reference"
    )
    course = parser.add_argument_group("course")
    course.add_argument(
        "--repeat", metavar="N", type=int, default=DEFAULT_REPETITIONS, help="runs per point (default 3)"
    )
    course.add_argument(
        "--in-flight",
        metavar="N",
        type=int,
        default=DEFAULT_IN_FLIGHT,
        help="maximum number of pending or running jobs (default 4)",
    )
    course.add_argument("--exhaustive", action="store_true", help="repeat dominated points, too")
    course.add_argument("--name", help="name of the sweep (default: name of the script)")
    course.add_argument(
        "--state", metavar="FILE", type=Path, help="state file (default senergy-sweep-NAME.json)"
    )
    course.add_argument("--restart", action="store_true", help="discard the results in the state file")
    course.add_argument("--cancel", action="store_true", help="cancel the pending and running jobs, and exit")
    course.add_argument("--dry-run", action="store_true", help="print the sbatch commands, and exit")
    show = parser.add_argument_group("output")
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the result as JSON")
    form.add_argument("--csv", action="store_true", help="print the result as CSV, one row per point")
    show.add_argument("--plots", metavar="DIR", type=Path, help="write the plots as PNG files")
    show.add_argument(
        "--best",
        metavar="METRIC",
        default="edp",
        help="metric whose best settings are printed as #SBATCH and environment lines: energy,"
        " gain_minus_loss, edp, eds_1.5 or eds_2 (default edp)",
    )
    connection.add_config_option(parser)


def add_knobs(group: argparse._ArgumentGroup) -> None:
    """Add one command-line option for each setting that a sweep can vary, such as a power limit."""
    group.add_argument("--gpu-cap", metavar="WATTS,...", help="power limits of each GPU")
    group.add_argument("--cap", metavar="WATTS,...", help="power caps of the node")
    group.add_argument("--cpu-freq", metavar="MHZ,...", help="upper bounds of the CPU frequency")
    group.add_argument("--gpu-clock", metavar="MHZ,...", help="upper bounds of the GPU clock")
    group.add_argument("--power-profile", metavar="NAME,...", help="NVIDIA workload power profiles")
    group.add_argument("--policy", metavar="NAME,...", help="energy policies")


def run(args: argparse.Namespace) -> int:
    """Run or continue a sweep (runs of one job at several settings), and print its result."""
    from slurm_energy.cli import sweep_output
    from slurm_energy.sweep import state as states
    from slurm_energy.sweep.submission import Submitter, read_given_options

    _check(args)
    content = _read(Path(args.script))
    design = sweep_preset.sweep_design(args, content, _factors(args))
    wanted = _wanted_state(args, content, design)
    given = read_given_options(args.script, content, wanted.options, wanted.points, design.replaced_options)
    path = args.state or Path(f"senergy-sweep-{wanted.name}.json")
    if args.dry_run:
        sweep_output.print_commands(Submitter(wanted, args.script, given), design, args)
        return EXIT_OK
    if args.plots:
        sweep_output.check_plots()
    with states.locked(path):
        state = states.load(path)
        if state is not None and not args.restart:
            state.refuse_other(wanted, path)
        elif state is not None and state.in_flight and not args.cancel:
            raise UsageError(f"{path}: jobs of this sweep may still run", todo="end them with --cancel first")
        if state is None or (args.restart and not args.cancel):
            state = wanted
        state.repetitions = max(state.repetitions, args.repeat)
        if args.cancel:
            return _cancel(state, path)
        result = _sweep(state, path, Submitter(state, args.script, given), args)
    sweep_output.print_result(result, design, args)
    return EXIT_OK if result.is_successful else EXIT_FAILURE


def _sweep(state: SweepState, path: Path, submitter: Submitter, args: argparse.Namespace) -> SweepResult:
    from slurm_energy.cli.sweep_output import ProgressBar
    from slurm_energy.sweep import state as states
    from slurm_energy.sweep.runner import SweepLimits, SweepRunner
    from slurm_energy.tuning.sweep.result import sweep_result

    limits = SweepLimits(args.repeat, args.in_flight, args.exhaustive)
    progress = ProgressBar(state, limits)
    runner = SweepRunner(
        state, cluster_access(submitter, args), limits, partial(states.save, state, path), progress.report
    )
    try:
        runner.run()
    except BaseException as error:
        progress.end()
        if state.runs and not isinstance(error, Exception | GeneratorExit):
            note(f"{len(state.in_flight)} jobs go on; the same command continues, --cancel ends them: {path}")
        raise
    progress.end()
    return sweep_result(state.name, state.points, state.runs, args.repeat, exhaustive=args.exhaustive)


def cluster_access(submitter: Submitter, args: argparse.Namespace) -> SweepCluster:
    """Return the functions with which a sweep reaches Slurm and the controller."""
    from slurm_energy.reports.usage import AccountedRecord
    from slurm_energy.slurm.job_state import find_own_jobs, read_job_states
    from slurm_energy.sweep.runner import SweepCluster

    client = connection.connect(args)

    def records(job_ids: Any) -> list[AccountedRecord]:
        parameters = {"job": ",".join(map(str, job_ids)), "steps": "0"}
        return [AccountedRecord.from_json(item) for item in client.get("/v1/records", parameters)["records"]]

    return SweepCluster(submitter.submit, find_own_jobs, read_job_states, records)


def _check(args: argparse.Namespace) -> None:
    from slurm_energy.tuning.sweep.metrics import METRICS

    if args.best not in METRICS:
        raise UsageError(f"--best: '{shown(args.best)}'", "is no metric", f"one of {', '.join(METRICS)}")
    for option, value, high in (
        ("repeat", args.repeat, MAX_REPETITIONS),
        ("in-flight", args.in_flight, MAX_IN_FLIGHT),
    ):
        if not 1 <= value <= high:
            raise UsageError(f"--{option}: {value}", "is out of bounds", f"1 to {high}")


def read_knobs(args: argparse.Namespace) -> list[Factor]:
    """Return the settings that the user wants to vary in a sweep, each with its values.

    The function reads the command-line options that `add_knobs` has added.
    """
    from slurm_energy.tuning.sweep.factors import KNOBS, parse_factor

    given = {name: getattr(args, name.replace("-", "_")) for name in KNOBS}
    return [parse_factor(name, text) for name, text in given.items() if text is not None]


def _factors(args: argparse.Namespace) -> list[Factor]:
    from slurm_energy.tuning.sweep.factors import parse_factor, parse_variable, read_factors

    factors = read_knobs(args)
    for name in ("batch-size", "threads", "precision"):
        if (text := getattr(args, name.replace("-", "_"))) is not None:
            factors.append(parse_factor(name, text))
    factors += [parse_variable(text) for text in args.env]
    if args.factors:
        factors += read_factors(_read(args.factors), str(args.factors))
    return factors


def _wanted_state(args: argparse.Namespace, content: bytes, design: sweep_preset.SweepDesign) -> SweepState:
    from slurm_energy.sweep.state import SweepState, check_name, digest, programs_of
    from slurm_energy.tuning.sweep.design import build_points

    at = args.rest.index("--") if "--" in args.rest else len(args.rest)
    points = build_points(
        design.factors,
        with_reference=not args.no_reference,
        configurations=design.configurations.settings if design.configurations else ((),),
    )
    if len(points) * args.repeat > MAX_RUNS:
        why = f"{len(points)} points with {args.repeat} repetitions"
        raise UsageError("senergy sweep", why, f"at most {MAX_RUNS} runs: use fewer values")
    name = check_name(Path(args.script).stem if args.name is None else args.name)
    return SweepState(
        name,
        f"senergy-sweep/{name}",
        digest(content),
        tuple(args.rest[:at]),
        tuple(args.rest[at + 1 :]),
        points,
        preset=design.preset.name if design.preset else "",
        programs=programs_of(content),
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(str(path), error.strerror or str(error)) from None


def _cancel(state: SweepState, path: Path) -> int:
    from slurm_energy.slurm.command import run_command
    from slurm_energy.sweep import state as states

    runs = [run for run in state.in_flight if run.job_id is not None]
    if runs:
        run_command(["scancel", *(str(run.job_id) for run in runs)])
    state.runs = [run for run in state.runs if not run.is_in_flight]
    states.save(state, path)
    print(f"senergy: {len(runs)} jobs cancelled; {path} keeps the finished runs", file=sys.stderr)
    return EXIT_OK
