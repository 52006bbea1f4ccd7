"""`senergy predict`: predicted time, power and energy of a training job.

The command predicts each alternative, for example each kind and number of GPUs.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection, predict_job
from slurm_energy.cli.output import emit, emit_fitted, emit_json
from slurm_energy.errors import EXIT_OK, UnavailableError, UsageError, install_extra
from slurm_energy.quantities import format_duration, format_scaled, parse_watts, shown
from slurm_energy.spelling import suggestion

if TYPE_CHECKING:
    from slurm_energy.oracle.configuration_sweep import Sweep
    from slurm_energy.oracle.site_files import SiteCalibrations
    from slurm_energy.oracle.workload import WorkloadProfile

HELP = "time, power and energy of a job before it runs"
_MAX_VALUES = 1000
_DEFAULTS = {"gpus": "1", "batch": "32", "cap": "none", "accumulate": "1", "epochs": "1", "eds_k": "1.5"}
_SCRIPT_ONLY = ("sbatch", "best", "slowdown", "user")
_TABLE_ONLY = (*_DEFAULTS, "list", "model", "trace", "save", "gpu", "precision", "clock", "samples", "plot")
_RANGE = re.compile(r"(?P<low>[^.:]+(?:\.\d+)?)\.\.(?P<high>[^:]+)(?::(?P<step>.+))?")

EPILOG = """\
With a batch script, the command prints the resources that the script requests and the predicted time, power
and energy of the job. The prediction comes from runs of similar jobs (your own; for operators all). If there
are none, it comes from the model that the script names with --energy-model, else from the time limit and the
TDP of the hardware. Runs of similar jobs require a controller. --best names the settings that serve an
objective best, from runs of this program at other settings, else from the training model, and a time limit if
runs of similar jobs are known. If a GPU cap is predicted to do harm, a note says so. Section [oracle] of the
configuration names calibrations and hardware files of the site.

Without a script, the command prints a table of alternatives. A model is the name of a workload profile
(--list) or a .json file. The batch size is samples per GPU and step, caps are watts per GPU; power and energy
are sums over the GPUs. The job processes --epochs of the model's usual data set, or --samples. RANGE: the
values of 90 of 100 such jobs are expected to lie within it. FRONT: no other alternative is better in both
time and energy. BEST: minimum of time, energy, energy-delay product (EDP) or energy-delay sum (EDS; 1 for the
first alternative without a limit). If this configuration of the job was never measured, alternatives within
2 % count as equal, and the first of them is selected. If its model was never measured, the selection takes
into account that a tight limit is a risk. On a kind of GPU with few or no measurements, limits within 4 % of
the minimum EDP count as equal, and the limit nearest to the usual best limit of other kinds is selected.

examples:
  senergy predict job.sh input.dat
  senergy predict job.sh --best edp
  senergy predict job.sh --best energy --slowdown 3
  senergy predict --sbatch="-N 4 -t 2:00:00" --json job.sh -- --steps 100
  senergy predict --model resnet50 --gpu a100 --gpus 1,4,8 --batch 128,256 --precision bf16 --cap 200..400:50
  senergy predict --model bert-base --gpu a40,rtx6000 --batch 32 --cap none,150,200 --epochs 3 --json
  senergy predict --model resnet50 --gpu a40 --cap 100..300:25 --plot caps.png
  senergy predict --trace net.py:build --save net.json --gpu h100     your own PyTorch model
  senergy predict --calibration a100.toml job.sh
  senergy predict --list

--trace calls FUNCTION of FILE.py, which returns (module, inputs). inputs(batch) returns the arguments of the
module's forward method.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy predict`."""
    parser.epilog = EPILOG
    predict_job.add_options(parser)
    parser.add_argument("--list", action="store_true", help="list models and kinds of GPU")
    parser.add_argument("--model", metavar="NAME", help="workload profile")
    parser.add_argument("--trace", metavar="FILE.py:FUNCTION", help="create the profile of a PyTorch model")
    parser.add_argument("--save", metavar="FILE.json", type=Path, help="with --trace: save the profile")
    parser.add_argument("--gpu", metavar="KIND", help="kinds of GPU, or their .toml files")
    parser.add_argument("--gpus", metavar="N", help="numbers of GPUs (default 1)")
    parser.add_argument("--batch", metavar="N", help="samples per GPU and step (default 32)")
    parser.add_argument(
        "--precision",
        help="fp32, tf32, bf16, fp16 (default: tf32 if all kinds support it, else fp32)",
    )
    parser.add_argument("--cap", metavar="WATTS", help="power limits per GPU (default none)")
    parser.add_argument(
        "--clock", metavar="MHZ", help="maximum clock of the GPUs (default: that of the hardware)"
    )
    parser.add_argument(
        "--accumulate", metavar="N", help="gradient accumulation: passes per update (default 1)"
    )
    parser.add_argument("--epochs", metavar="N", help="passes over the data set (default 1)")
    parser.add_argument("--samples", metavar="N", help="training samples, instead of --epochs")
    parser.add_argument("--eds-k", metavar="K", help="k of the energy-delay sum (default 1.5)")
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        type=Path,
        help="output of senergy calibrate; with a script: predict with the model instead of history",
    )
    parser.add_argument("--json", action="store_true", help="print JSON with ranges and sources")
    parser.add_argument(
        "--plot", metavar="FILE.png", type=Path, help="plot energy against time of the alternatives"
    )


def run(args: argparse.Namespace) -> int:
    """Predict a training job, or a batch script, and print the result.

    For a training job, each way to run the job is predicted.
    """
    if args.job:
        if option := _first_given(args, _TABLE_ONLY):
            raise UsageError(option, "given with a batch script", "omit the option, or omit the script")
        return predict_job.run(args)
    if option := _first_given(args, _SCRIPT_ONLY):
        todo = "without one the table marks the best rows" if option == "--best" else "name the script"
        raise UsageError(option, "it needs a batch script", todo)
    defaults = {name: value for name, value in _DEFAULTS.items() if getattr(args, name) is None}
    args = argparse.Namespace(**{**vars(args), **defaults})
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
            "give a batch script, or --model and --gpu", todo="--list shows models and kinds of GPU"
        )
    names, sweep_result = _sweep(args, profile)
    if args.json:
        from slurm_energy.oracle.configuration_sweep import to_json

        emit_json(to_json(sweep_result, names))
    else:
        emit_fitted(_lines(names, sweep_result))
    if args.plot:
        from slurm_energy.reports.plots.tradeoff_png import write_png

        write_png(sweep_result, f"{profile.name}, {names['precision']}", args.plot)
    return EXIT_OK


def _first_given(args: argparse.Namespace, names: Sequence[str]) -> str | None:
    """Return the first of the named options that the user gave, or None."""
    given = (name for name in names if getattr(args, name) not in (None, False, ""))
    return next((f"--{name.replace('_', '-')}" for name in given), None)


def _site(args: argparse.Namespace) -> SiteCalibrations:
    """Return the site's own calibrations of the predictor (corrections of its model).

    The hardware files of the site are registered as a side effect.
    """
    from slurm_energy.oracle.site_files import use_site

    settings = connection.configuration(args).oracle
    return use_site(settings.calibrations, settings.hardware)


def _list(args: argparse.Namespace) -> int:
    from slurm_energy.oracle.hardware import find_hardware, hardware_names
    from slurm_energy.oracle.workload import find_profile, profile_names

    site = _site(args)
    profiles = [find_profile(name) for name in profile_names()]
    hardware = [find_hardware(name) for name in sorted(set(hardware_names().values()))]
    calibrated = {gpu.name: site.of(gpu.name) for gpu in hardware}
    if args.json:
        emit_json(
            {
                "models": {item.name: item.description for item in profiles},
                "kinds": {name: item.basis for name, item in calibrated.items()},
            }
        )
        return EXIT_OK
    emit([f"{'MODEL':<18} {'PARAMETERS':>10}  DESCRIPTION"])
    emit_fitted(
        f"{item.name:<18} {format_scaled(item.parameters, 1):>10}  {item.description}" for item in profiles
    )
    emit(["", f"{'KIND':<18} {'TDP W':>10}  CALIBRATION"])
    emit_fitted(f"{gpu.name:<18} {gpu.tdp_watts:>10g}  {calibrated[gpu.name].basis}" for gpu in hardware)
    return EXIT_OK


def _profile(args: argparse.Namespace) -> WorkloadProfile | None:
    from slurm_energy.oracle.workload import find_profile, profile_files

    if args.trace is None:
        if args.save:
            raise UsageError("--save", "it requires --trace")
        return find_profile(args.model) if args.model else None
    if args.model:
        raise UsageError("--trace, --model", "they exclude each other", "give one of them")
    profile = _traced(args.trace)
    if args.save:
        profile_files.save_profile(profile, args.save)
    return profile


def _traced(text: str) -> WorkloadProfile:
    """Call a function of the user that returns a PyTorch model, and trace the model.

    Args:
        text: name of the function, as the user wrote it.
    """
    import runpy

    path, colon, function = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UsageError(f"--trace: '{shown(text)}'", "is not FILE.py:FUNCTION")
    from slurm_energy.oracle.workload.tracing import ProfileLabels, profile_module

    if not Path(path).is_file():
        raise UsageError(f"--trace: {shown(path)}", "no such file")
    function_object = _users(path, lambda: runpy.run_path(path).get(function))
    if not callable(function_object):
        raise UsageError(f"--trace: {shown(path)}", f"has no function '{shown(function)}'")
    pair = _users(path, function_object)
    if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[1])):
        raise UsageError(f"--trace: {function}", "does not return (module, inputs)", "see --help")
    module, inputs = pair
    if not hasattr(module, "named_parameters"):
        raise UsageError(
            f"--trace: {function}", "its first return value is not a PyTorch module", "see --help"
        )
    return profile_module(
        module, lambda batch: _users(path, lambda: inputs(batch)), ProfileLabels(Path(path).stem)
    )


def _users(path: str, call: Callable[[], Any]) -> Any:
    """Call code of the user and return the result. An error in that code is reported as one line.

    Args:
        path: file that contains the code.
        call: function that runs the code.
    """
    try:
        return call()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {shown(str(error), 200)}"
        raise UsageError(f"--trace: {shown(path)}", reason, "correct the file") from error


def _sweep(args: argparse.Namespace, profile: WorkloadProfile) -> tuple[dict[str, Any], Sweep]:
    from slurm_energy.oracle.calibration_files import load_calibration
    from slurm_energy.oracle.configuration_sweep import sweep
    from slurm_energy.oracle.hardware import PRECISIONS, find_hardware
    from slurm_energy.oracle.training_oracle import TrainingOracle, common_precision

    site = _site(args)
    hardware = list(
        dict.fromkeys(find_hardware(name.strip()) for name in args.gpu.split(",") if name.strip())
    )
    if not hardware:
        raise UsageError("--gpu", "no kind given", "--list shows all")
    precision = args.precision or common_precision(hardware)
    if precision not in PRECISIONS:
        message = f"--precision: '{shown(precision)}' is not one of {', '.join(PRECISIONS)}"
        raise UsageError(message, todo=suggestion(precision, PRECISIONS))
    samples = _samples(args, profile)
    oracle = TrainingOracle(site.of)
    if args.calibration:
        calibration = load_calibration(args.calibration)
        if calibration.hardware not in [gpu.name for gpu in hardware]:
            raise UsageError(
                f"--calibration {args.calibration}",
                f"it is for {calibration.hardware}",
                "name this kind with --gpu",
            )
        oracle = TrainingOracle(lambda name: calibration if name == calibration.hardware else site.of(name))
    sweep_result = sweep(
        oracle,
        profile,
        hardware,
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
    return names, sweep_result


def _samples(args: argparse.Namespace, profile: WorkloadProfile) -> float:
    if args.samples:
        return _positive(args.samples, "--samples")
    if profile.samples_per_epoch is None:
        raise UsageError(f"model {profile.name}", "the size of its data set is unknown", "give --samples")
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
    if not 0 <= count < _MAX_VALUES:
        raise UsageError(
            f"{flag}: {low:.9g}..{high:.9g}:{step:.9g}",
            f"is not an ascending range of at most {_MAX_VALUES} values",
            "write LOW..HIGH:STEP",
        )
    return [low + index * step for index in range(int(count + 1e-9) + 1)]


def _lines(names: dict[str, Any], sweep_result: Sweep) -> list[str]:
    from slurm_energy.reports.figure_format import DisplayUnits

    units = DisplayUnits()
    dataset = f" of {names['dataset']}" if names["dataset"] else ""
    lines = [f"{names['model']}, {names['precision']}, {names['samples']:,.0f} samples{dataset}", ""]
    lines.append(
        f"{'KIND':<16} {'GPUS':>4} {'BATCH':>6} {'CAP W':>6} {'MHz':>5} {'STEP ms':>9} {'TIME':>11}"
        f" {'RANGE':>9} {'WATTS':>7} {'ENERGY':>9} {'EDP':>11} {'EDS':>6} FRONT BEST"
    )
    objectives_by_index: dict[int, list[str]] = {}
    for name, index in sweep_result.best.items():
        objectives_by_index.setdefault(index, []).append(name)
    for index, prediction in enumerate(sweep_result.predictions):
        gpu, gpus, batch, cap = sweep_result.rows[index]
        time = prediction.duration_s
        spread = f"{100 * (time.low / time.mean - 1):+.0f}{100 * (time.high / time.mean - 1):+.0f}%"
        marks = (
            ("*" if sweep_result.front[index] else "").ljust(5)
            + " "
            + ",".join(objectives_by_index.get(index, []))
        )
        mhz = sweep_result.clock[index] * gpu.max_clock_mhz
        figures = (
            f"{mhz:>5.0f} {1e3 * sweep_result.step_s[index]:>9.2f}"
            f" {format_duration(time.mean):>11} {spread:>9}"
            f" {prediction.power_watts.mean:>7.0f} {units.text(prediction.energy_joules.mean, 'J'):>9}"
            f" {units.text(prediction.edp_js, 'J*s'):>11} {sweep_result.objectives['eds'][index]:>6.3f}"
        )
        limit = "none" if math.isinf(cap) else f"{cap:g}"
        lines.append(f"{gpu.name:<16} {gpus:>4.0f} {batch:>6.0f} {limit:>6} {figures} {marks}".rstrip())
    notes = dict.fromkeys(note for prediction in sweep_result.predictions for note in prediction.notes)
    bases = dict.fromkeys(prediction.basis for prediction in sweep_result.predictions)
    return [*lines, "", *(f"basis: {basis}" for basis in bases), *(f"note: {note}" for note in notes)]
