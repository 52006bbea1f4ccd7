"""`senergy predict`: predicted time, power and energy of a training job for each alternative."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection, predict_job
from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK, UnavailableError, UsageError, install_extra
from slurm_energy.quantities import format_duration, format_scaled, parse_watts, shown
from slurm_energy.spelling import suggestion

if TYPE_CHECKING:
    from slurm_energy.oracle.configuration_sweep import Sweep
    from slurm_energy.oracle.site_files import SiteCalibrations
    from slurm_energy.oracle.workload import WorkloadProfile

HELP = "time, watts and energy of a job before it runs"
_MOST_VALUES = 1000
_RANGE = re.compile(r"(?P<low>[^.:]+(?:\.\d+)?)\.\.(?P<high>[^:]+)(?::(?P<step>.+))?")

EPILOG = """\
With a batch script: what sbatch would be asked for by it, and what the job will take. The answer comes from
runs of like jobs (your own; operators: all), else from the model that the script names with --energy-model,
else from the time limit and the hardware's TDP. Without a controller the first is left out. Calibrations and
hardware files of the site are those of section [oracle] of the configuration.

Without a script, a table of alternatives. A model is the name of a workload profile (--list) or a .json
file. Batch is samples per GPU and step, caps are watts per GPU; watts and energy are those of the GPUs
together. The job works through --epochs of the model's usual data set, or --samples. RANGE: where 90 in 100
such jobs should end. FRONT: nothing else is better in time and energy. BEST: least time, energy,
energy-delay product (EDP) and energy-delay sum (EDS; the first alternative without a limit has 1). Where
the very job was never measured, alternatives within 2 % count as equal and the first is taken; where its
model was not, tight limits count as a risk. On a kind of GPU with few measurements or none, limits within 4 %
of the least product count as equal, and the one nearest to the usual best limit of other kinds is taken.

examples:
  senergy predict job.sh input.dat
  senergy predict --sbatch="-N 4 -t 2:00:00" --json job.sh -- --steps 100
  senergy predict --model resnet50 --gpu a100 --gpus 1,4,8 --batch 128,256 --precision bf16 --cap 200..400:50
  senergy predict --model bert-base --gpu a40,rtx6000 --batch 32 --cap none,150,200 --epochs 3 --json
  senergy predict --model resnet50 --gpu a40 --cap 100..300:25 --plot caps.png
  senergy predict --trace net.py:build --save net.json --gpu h100     a PyTorch model of your own
  senergy predict --calibration a100.toml job.sh
  senergy predict --list

--trace runs FUNCTION of FILE.py. It returns (module, inputs); inputs(batch) gives the arguments of the
module's forward.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy predict`."""
    parser.epilog = EPILOG
    predict_job.add_options(parser)
    parser.add_argument("--list", action="store_true", help="list models and kinds of GPU")
    parser.add_argument("--model", metavar="NAME", help="workload profile")
    parser.add_argument("--trace", metavar="FILE.py:FUNCTION", help="make the profile of a PyTorch model")
    parser.add_argument("--save", metavar="FILE.json", type=Path, help="with --trace: keep the profile")
    parser.add_argument("--gpu", metavar="KIND", help="kinds of GPU, or .toml files of them")
    parser.add_argument("--gpus", metavar="N", default="1", help="numbers of GPUs (default 1)")
    parser.add_argument("--batch", metavar="N", default="32", help="samples per GPU and step (default 32)")
    parser.add_argument(
        "--precision",
        help="fp32, tf32, bf16, fp16 (default: tf32 if all kinds have a unit for it, else fp32)",
    )
    parser.add_argument("--cap", metavar="WATTS", default="none", help="power limits per GPU (default none)")
    parser.add_argument("--clock", metavar="MHZ", help="highest clock of the GPUs (default their own)")
    parser.add_argument("--accumulate", metavar="N", default="1", help="passes per update (default 1)")
    parser.add_argument("--epochs", metavar="N", default="1", help="times through the data set (default 1)")
    parser.add_argument("--samples", metavar="N", help="training samples, instead of --epochs")
    parser.add_argument("--eds-k", metavar="K", default="1.5", help="k of the energy-delay sum (default 1.5)")
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        type=Path,
        help="from senergy calibrate; with a script: the model answers, not history",
    )
    parser.add_argument("--json", action="store_true", help="JSON with ranges and origin")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="draw energy over time")


def run(args: argparse.Namespace) -> int:
    """Predict and print the table of alternatives."""
    if args.job:
        return predict_job.run(args)
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise UnavailableError(
            "senergy predict", "numpy is not installed", install_extra("predict")
        ) from None
    if args.list:
        return _list(args)
    profile = _profile(args)
    if profile is not None and args.gpu is None and args.trace:
        return EXIT_OK
    if profile is None or args.gpu is None:
        raise UsageError(
            "a batch script, or --model and --gpu, are needed", todo="--list shows models and kinds"
        )
    names, found = _sweep(args, profile)
    if args.json:
        from slurm_energy.oracle.configuration_sweep import to_json

        emit_json(to_json(found, names))
    else:
        emit(_lines(names, found))
    if args.plot:
        from slurm_energy.reports.tradeoff_png import write_png

        write_png(found, f"{profile.name}, {names['precision']}", args.plot)
    return EXIT_OK


def _site(args: argparse.Namespace) -> SiteCalibrations:
    """Return the site's calibrations, and register its hardware files."""
    from slurm_energy.oracle.site_files import use_site

    settings = connection.configuration(args).oracle
    return use_site(settings.calibrations, settings.hardware)


def _list(args: argparse.Namespace) -> int:
    from slurm_energy.oracle.hardware import find_hardware, hardware_names
    from slurm_energy.oracle.workload import find_profile, profile_names

    site = _site(args)
    profiles = [find_profile(name) for name in profile_names()]
    kinds = [find_hardware(name) for name in sorted(set(hardware_names().values()))]
    calibrated = {kind.name: site.of(kind.name) for kind in kinds}
    if args.json:
        emit_json(
            {
                "models": {item.name: item.description for item in profiles},
                "kinds": {name: item.basis for name, item in calibrated.items()},
            }
        )
        return EXIT_OK
    emit([f"{'MODEL':<18} {'PARAMETERS':>10}  DESCRIPTION"])
    emit(f"{item.name:<18} {format_scaled(item.parameters, 1):>10}  {item.description}" for item in profiles)
    emit(["", f"{'KIND':<18} {'TDP W':>10}  CALIBRATION"])
    emit(f"{kind.name:<18} {kind.tdp_watts:>10g}  {calibrated[kind.name].basis}" for kind in kinds)
    return EXIT_OK


def _profile(args: argparse.Namespace) -> WorkloadProfile | None:
    from slurm_energy.oracle.workload import find_profile, profile_files

    if args.trace is None:
        if args.save:
            raise UsageError("--save", "it belongs to --trace")
        return find_profile(args.model) if args.model else None
    if args.model:
        raise UsageError("--trace", "it takes the place of --model", "give one of them")
    profile = _traced(args.trace)
    if args.save:
        profile_files.save_profile(profile, args.save)
    return profile


def _traced(text: str) -> WorkloadProfile:
    """Run the user's function and trace the model that it returns."""
    import runpy

    path, colon, function = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UsageError(f"--trace: '{shown(text)}'", "is not FILE.py:FUNCTION")
    from slurm_energy.oracle.workload.tracing import ProfileLabels, profile_module

    if not Path(path).is_file():
        raise UsageError(f"--trace: {shown(path)}", "no such file")
    made = _users(path, lambda: runpy.run_path(path).get(function))
    if not callable(made):
        raise UsageError(f"--trace: {shown(path)}", f"has no function '{shown(function)}'")
    pair = _users(path, made)
    if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[1])):
        raise UsageError(f"--trace: {function}", "does not return (module, inputs)", "see --help")
    module, inputs = pair
    if not hasattr(module, "named_parameters"):
        raise UsageError(
            f"--trace: {function}", "the first that it returns is no PyTorch module", "see --help"
        )
    return profile_module(
        module, lambda batch: _users(path, lambda: inputs(batch)), ProfileLabels(Path(path).stem)
    )


def _users(path: str, call: Callable[[], Any]) -> Any:
    """Run the user's code. Report each of its errors as one line."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {shown(str(error), 200)}"
        raise UsageError(f"--trace: {shown(path)}", reason, "mend the file") from error


def _sweep(args: argparse.Namespace, profile: WorkloadProfile) -> tuple[dict[str, Any], Sweep]:
    from slurm_energy.oracle.calibration_files import load_calibration
    from slurm_energy.oracle.configuration_sweep import sweep
    from slurm_energy.oracle.hardware import PRECISIONS, find_hardware
    from slurm_energy.oracle.training_oracle import TrainingOracle, common_precision

    site = _site(args)
    kinds = list(dict.fromkeys(find_hardware(name.strip()) for name in args.gpu.split(",") if name.strip()))
    if not kinds:
        raise UsageError("--gpu", "no kind given", "--list shows all")
    precision = args.precision or common_precision(kinds)
    if precision not in PRECISIONS:
        what = f"--precision: '{shown(precision)}' is not one of {', '.join(PRECISIONS)}"
        raise UsageError(what, todo=suggestion(precision, PRECISIONS))
    samples = _samples(args, profile)
    oracle = TrainingOracle(site.of)
    if args.calibration:
        own = load_calibration(args.calibration)
        if own.hardware not in [kind.name for kind in kinds]:
            raise UsageError(
                f"--calibration {args.calibration}", f"it is of {own.hardware}", "ask for that --gpu"
            )
        oracle = TrainingOracle(lambda name: own if name == own.hardware else site.of(name))
    found = sweep(
        oracle,
        profile,
        kinds,
        _counts(args.gpus, "--gpus"),
        _counts(args.batch, "--batch"),
        _caps(args.cap),
        precision,
        samples,
        k=_positive(args.eds_k, "--eds-k"),
        clock_mhz=_positive(args.clock, "--clock") if args.clock else math.inf,
        accumulation=_count(args.accumulate, "--accumulate"),
    )
    names = {"model": profile.name, "precision": precision, "samples": samples, "dataset": profile.dataset}
    return names, found


def _samples(args: argparse.Namespace, profile: WorkloadProfile) -> float:
    if args.samples:
        return _positive(args.samples, "--samples")
    if profile.samples_per_epoch is None:
        raise UsageError(f"model {profile.name}", "the size of its data set is not known", "give --samples")
    return profile.samples_per_epoch * _positive(args.epochs, "--epochs")


def _positive(text: str, flag: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e18:
        raise UsageError(f"{flag}: '{shown(text)}'", "is not a number above 0")
    return value


def _counts(text: str, flag: str) -> list[float]:
    values = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        ends = (match["low"], match["high"], match["step"] or "1") if match else (item, item, "1")
        low, high, step = (_count(end.strip(), flag) for end in ends)
        values += _between(low, high, step, flag)
    return list(dict.fromkeys(values))


def _count(text: str, flag: str) -> float:
    if not re.fullmatch(r"[0-9]{1,7}", text, re.ASCII) or int(text) < 1:
        raise UsageError(
            f"{flag}: '{shown(text)}'", "is not a whole number above 0", "write 1,4,8 or 32..128:32"
        )
    return float(text)


def _caps(text: str) -> list[float]:
    values: list[float] = []
    for item in (part.strip() for part in text.split(",")):
        match = _RANGE.fullmatch(item)
        if item == "none":
            values.append(math.inf)
        elif match:
            ends = (match["low"], match["high"], match["step"] or "25")
            low, high, step = (parse_watts(end.strip(), "--cap") for end in ends)
            values += _between(low, high, step, "--cap")
        else:
            values.append(parse_watts(item, "--cap"))
    return list(dict.fromkeys(values))


def _between(low: float, high: float, step: float, flag: str) -> list[float]:
    count = (high - low) / step
    if not 0 <= count < _MOST_VALUES:
        raise UsageError(
            f"{flag}: {low:.9g}..{high:.9g}:{step:.9g}",
            f"is not a rising range of at most {_MOST_VALUES} values",
            "write LOW..HIGH:STEP",
        )
    return [low + place * step for place in range(int(count + 1e-9) + 1)]


def _lines(names: dict[str, Any], found: Sweep) -> list[str]:
    from slurm_energy.reports.figure_format import DisplayUnits

    units = DisplayUnits()
    dataset = f" of {names['dataset']}" if names["dataset"] else ""
    out = [f"{names['model']}, {names['precision']}, {names['samples']:,.0f} samples{dataset}", ""]
    out.append(
        f"{'KIND':<16} {'GPUS':>4} {'BATCH':>6} {'CAP W':>6} {'MHz':>5} {'STEP ms':>9} {'TIME':>11}"
        f" {'RANGE':>9} {'WATTS':>7} {'ENERGY':>9} {'EDP':>11} {'EDS':>6} FRONT BEST"
    )
    bests: dict[int, list[str]] = {}
    for name, place in found.best.items():
        bests.setdefault(place, []).append(name)
    for place, prediction in enumerate(found.predictions):
        kind, gpus, batch, cap = found.rows[place]
        time = prediction.duration_s
        spread = f"{100 * (time.low / time.mean - 1):+.0f}{100 * (time.high / time.mean - 1):+.0f}%"
        marks = ("*" if found.front[place] else "").ljust(5) + " " + ",".join(bests.get(place, []))
        mhz = found.clock[place] * kind.max_clock_mhz
        figures = (
            f"{mhz:>5.0f} {1e3 * found.step_s[place]:>9.2f} {format_duration(time.mean):>11} {spread:>9}"
            f" {prediction.power_watts.mean:>7.0f} {units.text(prediction.energy_joules.mean, 'J'):>9}"
            f" {units.text(prediction.edp_js, 'J*s'):>11} {found.objectives['eds'][place]:>6.3f}"
        )
        limit = "none" if math.isinf(cap) else f"{cap:g}"
        out.append(f"{kind.name:<16} {gpus:>4.0f} {batch:>6.0f} {limit:>6} {figures} {marks}".rstrip())
    notes = dict.fromkeys(note for prediction in found.predictions for note in prediction.notes)
    bases = dict.fromkeys(prediction.basis for prediction in found.predictions)
    return [*out, "", *(f"basis: {basis}" for basis in bases), *(f"note: {note}" for note in notes)]
