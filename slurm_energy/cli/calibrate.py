"""`senergy calibrate`: fit the training model of one kind of GPU to measurements."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK, UnavailableError, UsageError, install_extra
from slurm_energy.quantities import format_duration, shown
from slurm_energy.spelling import suggestion

if TYPE_CHECKING:
    from slurm_energy.oracle.calibration.fitting import Fit
    from slurm_energy.oracle.calibration.search import Progress
    from slurm_energy.oracle.transfer.prior import Transfer

HELP = "fit the training model of one kind of GPU to measured training steps"
_BAR = 30
_MAX_POPULATION = 100_000

EPILOG = """\
MEASUREMENTS is a CSV file with the columns model,batch,gpus,precision,optimizer,cap_watts,step_s,power_watts
(model: a workload profile or the .json file of one; cap_watts empty: no limit; power_watts of one GPU,
empty: not measured), or a file of the Zeus power-limit study. The search is seeded: the same measurements and
options give the same result with any number of --workers. With --checkpoint the search saves its state
every 20 generations and resumes from there after an interruption.

A search needs sweeps: configurations measured at four power limits or more, which span 40 % of the design
power; at least four sweeps, and most measurements in them. With fewer (one measurement is enough) the
response to limits is transferred from other kinds of GPU and corrected by the measurements, which takes a
second. --method selects one of the two methods.

Use the result with senergy predict --calibration, or list it in oracle.calibrations of the configuration for
senergyctld and senergy predict.

examples:
  senergy calibrate steps.csv --gpu a100 --output a100.toml --workers 2
  senergy calibrate steps.csv --gpu a100 --start a100.toml --generations 0 --kicks 20 --output better.toml
  senergy calibrate summary_power_a40.csv --gpu a40 --precision tf32 --output a40.toml --checkpoint a40.npz
  senergy calibrate few.csv --gpu h100 --prior a40.toml --prior a100.toml --output h100.toml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy calibrate`."""
    parser.epilog = EPILOG
    parser.add_argument("measurements", metavar="MEASUREMENTS", type=Path, help="CSV file")
    parser.add_argument("--gpu", metavar="KIND", required=True, help="kind of GPU, or a .toml file")
    parser.add_argument("--output", metavar="FILE", type=Path, required=True, help="calibration to write")
    parser.add_argument(
        "--precision", default="fp32", help="precision of the runs in a study file (default fp32)"
    )
    parser.add_argument(
        "--saturation",
        default="sigmoid",
        help="saturation function: sigmoid, arctan, softsign, algebraic, tanh",
    )
    parser.add_argument(
        "--generations", metavar="N", type=int, default=600, help="generations of the search (default 600)"
    )
    parser.add_argument(
        "--population", metavar="N", type=int, default=240, help="candidates per generation (default 240)"
    )
    parser.add_argument(
        "--polish",
        metavar="N",
        type=int,
        default=250,
        help="iterations of the final local search (default 250)",
    )
    parser.add_argument(
        "--kicks",
        metavar="N",
        type=int,
        default=12,
        help="restarts of the local search near the best candidate (default 12)",
    )
    parser.add_argument(
        "--method",
        default="auto",
        help="search, transfer, or auto: search if the sweeps suffice (default auto)",
    )
    parser.add_argument(
        "--prior",
        metavar="FILE",
        type=Path,
        action="append",
        help="calibration of another kind to transfer from; may be repeated (default: all shipped)",
    )
    parser.add_argument("--start", metavar="FILE", type=Path, help="calibration from which the search starts")
    parser.add_argument("--workers", metavar="N", type=int, default=1, help="number of processes (default 1)")
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="random seed (default 1)")
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        type=Path,
        help="file in which the state of the search is saved and from which it resumes",
    )
    parser.add_argument(
        "--plain", action="store_true", help="as in the thesis: Eq. 4.18 alone, without residuals"
    )
    parser.add_argument("--json", action="store_true", help="print the errors of the fit as JSON")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Fit the calibration and write it to a file."""
    for library in ("OPENBLAS", "MKL", "OMP"):  # threads slow down computations on such small matrices
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    try:
        from slurm_energy.oracle.calibration.fit_problem import Weights
        from slurm_energy.oracle.calibration.fitting import fit
        from slurm_energy.oracle.calibration.identification import sweeps_determine_response
        from slurm_energy.oracle.calibration.measurements import read_measurements
        from slurm_energy.oracle.calibration.search import SearchSettings
    except ImportError as error:
        reason = f"{(error.name or str(error)).partition('.')[0]} is not installed"
        raise UnavailableError("senergy calibrate", reason, install_extra("predict")) from None
    from slurm_energy.oracle.calibration_files import check_writable, load_calibration, save_calibration
    from slurm_energy.oracle.hardware import find_hardware
    from slurm_energy.oracle.site_files import use_site

    _check_values(args)
    settings = connection.configuration(args).oracle
    use_site(settings.calibrations, settings.hardware)
    hardware = find_hardware(args.gpu)
    rows = read_measurements(args.measurements, args.precision)
    start = load_calibration(args.start) if args.start else None
    if start is not None and start.hardware != hardware.name:
        raise UsageError(
            f"--start {args.start}",
            f"it is for {shown(start.hardware)}",
            f"name a calibration for {hardware.name}",
        )
    method = "search" if args.plain and args.method == "auto" else args.method
    if method == "auto":
        method = "search" if sweeps_determine_response(hardware, rows) else "transfer"
    _check_search_options(args, method)
    check_writable(args.output)
    search_settings = SearchSettings(
        seed=args.seed,
        generations=args.generations,
        population=args.population,
        workers=args.workers,
        polish=args.polish,
        kicks=args.kicks,
        weights=Weights(0.0, 0.0) if args.plain else Weights(),
    )
    result = fit(
        hardware,
        rows,
        search_settings,
        start=start,
        saturation=args.saturation,
        checkpoint=args.checkpoint,
        progress=_bar(time.monotonic()),
        residuals=not args.plain,
        method=method,
        prior=_prior(args, hardware.name),
    )
    if sys.stderr.isatty():
        print(file=sys.stderr)
    save_calibration(result.calibration, args.output)
    _report(result, args)
    return EXIT_OK


def _check_values(args: argparse.Namespace) -> None:
    """Check the values of the options of `senergy calibrate`.

    Raises:
        UsageError: an option has an invalid value; the message names the option.
    """
    from slurm_energy.oracle.calibration.fitting import METHODS
    from slurm_energy.oracle.hardware import PRECISIONS
    from slurm_energy.oracle.training.saturation import SATURATIONS

    for flag, value, allowed in (
        ("--precision", args.precision, PRECISIONS),
        ("--saturation", args.saturation, tuple(SATURATIONS)),
        ("--method", args.method, METHODS),
    ):
        if value not in allowed:
            message = f"{flag}: '{shown(value)}' is not one of {', '.join(allowed)}"
            raise UsageError(message, todo=suggestion(value, allowed))
    smallest = min(args.generations, args.polish, args.kicks, args.seed)
    if args.workers < 1 or not 8 <= args.population <= _MAX_POPULATION or smallest < 0:
        message = f"at least 1 and 8 to {_MAX_POPULATION}; other numbers at least 0"
        raise UsageError("--workers, --population", message)


def _check_search_options(args: argparse.Namespace, method: str) -> None:
    """Refuse command-line options of the parameter search if `method` runs no search.

    Raises:
        UsageError: such an option was given. The error names the option.
    """
    if method == "search":
        return
    for flag, value in (("--checkpoint", args.checkpoint), ("--start", args.start), ("--plain", args.plain)):
        if value:
            reason = (
                "it requires a search, and these measurements are too few or lack sweeps over power limits"
            )
            if args.method == "transfer":
                reason = "it requires a search and does not apply to --method transfer"
            raise UsageError(flag, reason, "omit it, or give --method search")


def _prior(args: argparse.Namespace, hardware: str) -> Transfer:
    """Return the starting point (prior) of the calibration for GPUs of the kind `hardware`.

    The prior is computed from calibrations of other kinds of GPU: those that --prior names, else those of
    the package.

    Raises:
        UsageError: a --prior file is for the same kind of GPU, or contains no information that can be
            transferred to other kinds.
    """
    from slurm_energy.oracle.calibration_files import load_calibration, shipped_prior
    from slurm_energy.oracle.transfer.prior import combined

    if not args.prior:
        return shipped_prior(hardware)
    transfers = []
    for path in args.prior:
        other = load_calibration(path)
        if other.hardware == hardware:
            raise UsageError(f"--prior {path}", "it is for the same kind", "name calibrations of other kinds")
        if other.transfer is None:
            raise UsageError(
                f"--prior {path}", "it has no [transfer]", "calibrate that kind by a search, not --plain"
            )
        transfers.append(other.transfer)
    return combined(transfers)


def _bar(began_s: float) -> Progress:
    """Return a function that draws a progress bar on standard error, if that is a terminal.

    Args:
        began_s: start of the calibration in monotonic seconds.
    """

    def draw(done: int, planned: int, loss: float) -> None:
        if not sys.stderr.isatty():
            return
        remaining_s = (time.monotonic() - began_s) / done * (planned - done)
        filled = _BAR * done // planned
        bar = "#" * filled + "." * (_BAR - filled)
        text = f"\r[{bar}] {done}/{planned}  loss {loss:.4f}  remaining {format_duration(remaining_s)}"
        print(text, end="", file=sys.stderr, flush=True)

    return draw


def _report(result: Fit, args: argparse.Namespace) -> None:
    if args.json:
        emit_json(
            {
                "hardware": result.calibration.hardware,
                "method": result.method,
                "rows": result.calibration.rows,
                "time_mape": result.time_error,
                "power_mape": result.power_error,
                "combined_mape": result.combined_error,
                "combined_mape_without_residuals": result.model_error,
                "output": str(args.output),
            }
        )
        return
    errors = (
        f"mean absolute error: time {result.time_error:.2%}, power {result.power_error:.2%},"
        f" combined {result.combined_error:.2%}"
    )
    if result.method == "transfer":
        lines = [f"{errors} (before these measurements {result.model_error:.2%})"]
        lines.append("method: transfer; each prediction includes its range")
    else:
        spread = result.calibration.measured_spread
        lines = [
            f"{errors} (without residuals {result.model_error:.2%})",
            f"90 % of measured / predicted: time {spread.time_low:.2f} to {spread.time_high:.2f},"
            f" power {spread.power_low:.2f} to {spread.power_high:.2f}",
        ]
    head = f"{result.calibration.hardware}: {result.calibration.basis}"
    emit([head, *lines, f"written: {args.output}"])
