"""`senergy predict SCRIPT`: predict a batch script with the first source that can predict the job."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pwd
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import best_settings, connection
from slurm_energy.cli.output import emit_fitted, emit_json
from slurm_energy.errors import EXIT_OK, EnergyError, UnavailableError, UsageError
from slurm_energy.quantities import JOULES_PER_KWH, format_duration, shown

if TYPE_CHECKING:
    from slurm_energy.cli.best_settings import BestSettings
    from slurm_energy.oracle.prediction import Estimate, Oracle, Prediction, PredictionRequest
    from slurm_energy.slurm.batch_script import BatchScript
    from slurm_energy.tuning.objective import Objective

_SHORT_S = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for batch scripts."""
    parser.add_argument(
        "job",
        nargs="*",
        metavar="SCRIPT [ARGUMENT]",
        help="batch script and its arguments; write -- before arguments that begin with a dash",
    )
    parser.add_argument(
        "--sbatch",
        metavar="OPTIONS",
        default="",
        help="with a script: options of sbatch that precede those in the script, --sbatch=-N4",
    )
    best_settings.add_options(parser)
    parser.add_argument("--user", metavar="NAME", help="with a script: owner of the job (operators only)")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Read the script, predict the job and print the prediction."""
    objective = best_settings.objective_of(args)
    script = _read(Path(args.job[0]), args.job[1:], args.sbatch)
    notes = list(script.notes)
    request = prediction_request(args, script, notes)
    prediction = predict(args, request, notes)
    best = _best(args, objective, request, prediction, notes)
    prediction = dataclasses.replace(prediction, notes=(*notes, *prediction.notes))
    if args.json:
        emit_json(
            {
                "job": _job_json(script),
                "request": dataclasses.asdict(request),
                "prediction": prediction.to_json(),
                **({} if objective is None else {"best": None if best is None else best.to_json()}),
            }
        )
    else:
        emit_fitted(lines(script, request, prediction))
        if best is not None:
            emit_fitted(
                f"{label:<8}{line}" for label, line in zip(("best", "use"), best.lines(), strict=False)
            )
    return EXIT_OK


def _best(
    args: argparse.Namespace,
    objective: Objective | None,
    request: PredictionRequest,
    prediction: Prediction,
    notes: list[str],
) -> BestSettings | None:
    """Return the best known settings of the job if --best was given.

    The result is None without --best, or if no response curve of the job is known. If the curve shows that
    the requested GPU cap is harmful, a warning is added to `notes`, also without
    --best.
    """
    if objective is None and request.gpu_cap_watts is None:
        return None
    reasons: list[str] = []
    curve = best_settings.known_curve(args, request, reasons)
    if curve is not None and request.gpu_cap_watts is not None:
        notes += filter(None, [best_settings.cap_advice(curve, request.gpu_cap_watts)])
    if objective is None:
        return None
    if curve is None:
        notes += [*reasons, f"--best: {best_settings.UNKNOWN}; {best_settings.UNKNOWN_TODO}"]
        return None
    uncapped = best_settings.without_caps(request)
    untuned = prediction if uncapped == request else predict(args, uncapped, [])
    return best_settings.best_settings(
        curve, objective, connection.configuration(args).accepted_bounds, untuned
    )


def lines(script: BatchScript, request: PredictionRequest, prediction: Prediction) -> list[str]:
    """Return the lines to print: the job, the predicted values, and the source of the prediction."""
    from slurm_energy.oracle.history.history_oracle import age_text
    from slurm_energy.reports.figure_format import with_unit

    kwh = prediction.energy_joules.mean / JOULES_PER_KWH
    edp = with_unit(prediction.edp_js, "J s")
    rows = [
        ["", "mean", "5 %", "95 %"],
        ["time", *map(_seconds, _parts(prediction.duration_s))],
        ["power", *(with_unit(watts, "W") for watts in _parts(prediction.power_watts))],
        ["energy", *(with_unit(joules, "J") for joules in _parts(prediction.energy_joules))],
    ]
    page = [f"{shown(script.name)}: {_requested(script, request)}"]
    page += [f"  {shown(script.command, 90)}"] if script.command else []
    page += [f"{name:<8}{mean:>14} {low:>13} {high:>13}" for name, mean, low, high in rows]
    page += [f"{'EDP':<8}{edp:>14}", f"{'kWh':<8}{kwh:>14.4g}"]
    if script.tasks > 1:
        total = with_unit(prediction.energy_joules.mean * script.tasks, "J")
        page.append(f"{'array':<8}{script.tasks} tasks of this kind: {total} in total")
    age = "" if prediction.age_s is None else f", newest {age_text(prediction.age_s)} old"
    page.append(f"{'source':<8}{prediction.source}{age}")
    page.append(f"{'basis':<8}{shown(prediction.basis, 300)}")
    return page + [f"{'note':<8}{shown(note, 300)}" for note in prediction.notes]


def _read(path: Path, arguments: list[str], sbatch: str) -> BatchScript:
    from slurm_energy.slurm.batch_script import read_content, read_script

    content = read_content(path)
    try:
        extra = shlex.split(sbatch)
    except ValueError as error:
        raise UsageError(f"--sbatch: {error}") from None
    return read_script(str(path), content, arguments, extra)


def prediction_request(args: argparse.Namespace, script: BatchScript, notes: list[str]) -> PredictionRequest:
    """Return the prediction request for a batch script.

    A message is added to `notes` if submission would refuse the script's flags.
    """
    from slurm_energy.oracle.prediction import PredictionRequest
    from slurm_energy.policies.catalogue import policy_caps
    from slurm_energy.policies.flags import PolicyRequest, validate_flags

    user = args.user or _login_name()
    caps: dict[str, tuple[float | None, float | None]] = {}
    try:
        config = connection.configuration(args)
        policy_request = validate_flags(script.flags, config, user, script.partition)
        caps = policy_caps(config)
    except EnergyError as error:
        notes.append(str(error))
        policy_request = PolicyRequest(policy=script.flags.get("ENERGY_POLICY", "monitor"))
    cap, gpu_cap = caps.get(policy_request.policy, (None, None))
    return PredictionRequest(
        user=user,
        account=script.account,
        partition=script.partition,
        name=script.name,
        fingerprint=script.fingerprint,
        nodes=script.nodes,
        cpus=script.cpus,
        gpus=script.gpus,
        gpu_kind=script.gpu_kind,
        time_limit_s=script.time_limit_s,
        policy=policy_request.policy,
        cap_watts=policy_request.cap_watts or cap,
        gpu_cap_watts=policy_request.gpu_cap_watts or gpu_cap,
        model=policy_request.model,
        tag=policy_request.tag,
    )


def predict(
    args: argparse.Namespace,
    request: PredictionRequest,
    notes: list[str],
    total_timeout_s: float | None = None,
) -> Prediction:
    """Return the prediction of the first source that can predict the job.

    Args:
        args: command line; `calibration` names a file that takes precedence over all sources.
        request: prediction request for the job.
        notes: list to which the function adds its reason for not using a source.
        total_timeout_s: maximum duration of the request to senergyctld; None means that only single
            network operations have a time limit.
    """
    from slurm_energy.oracle.nameplate import NameplateOracle
    from slurm_energy.oracle.prediction import FallbackOracle

    if args.calibration is not None:
        return _calibrated(args.calibration, args, request)
    oracles: list[Oracle] = [_Controller(args, notes, total_timeout_s)]
    if request.model:
        oracles += _model(args, request, notes)
    return FallbackOracle([*oracles, NameplateOracle()]).require(request)


def _calibrated(path: Path, args: argparse.Namespace, request: PredictionRequest) -> Prediction:
    """Return the training model's prediction with the calibration in the file `path`.

    Measured runs are not used.

    Raises:
        UsageError: the script does not name a model and a GPU type that the training model knows, or names
            a GPU type other than that of the calibration.
    """
    flag = f"--calibration {path}"
    if not request.model or not request.gpu_kind:
        missing = "a model (--energy-model)" if not request.model else "a kind of GPU (--gpus=a100:4)"
        raise UsageError(flag, f"the script does not name {missing}", "name it, or omit the option")
    notes: list[str] = []
    oracles = _model(args, request, notes)
    if not oracles:
        raise UsageError(flag, notes[-1], "omit the option")
    from slurm_energy.oracle.calibration_files import load_calibration
    from slurm_energy.oracle.hardware import find_hardware
    from slurm_energy.oracle.training_oracle import TrainingOracle

    calibration, gpu_kind = load_calibration(path), find_hardware(request.gpu_kind).name
    if calibration.hardware != gpu_kind:
        raise UsageError(flag, f"it is for {shown(calibration.hardware)}", f"the script requests {gpu_kind}")
    prediction = TrainingOracle(lambda name: calibration).predict(request)
    if prediction is None:
        raise UsageError(flag, "the model cannot predict this job", "omit the option")
    return prediction


def _model(args: argparse.Namespace, request: PredictionRequest, notes: list[str]) -> list[Oracle]:
    """Return a list with the predictor (oracle) for jobs that train a model.

    If it cannot predict the job, the list is empty and the reason is added to `notes`.
    """
    if not request.gpu_kind:
        notes.append("the model was not used: no kind of GPU is named (--gpus=a100:4)")
        return []
    try:
        from slurm_energy.oracle.hardware import find_hardware
        from slurm_energy.oracle.site_files import use_site
        from slurm_energy.oracle.training_oracle import TrainingOracle
        from slurm_energy.oracle.workload import find_profile
    except ImportError:
        notes.append("the model was not used: numpy is not installed")
        return []
    try:
        settings = connection.configuration(args).oracle
        site = use_site(settings.calibrations, settings.hardware)
        # a path in a job's flags is not accepted as a name: only shipped profiles and hardware are used
        find_profile(request.model.removesuffix(".json") if request.model else "")
        find_hardware(request.gpu_kind.removesuffix(".toml"))
    except EnergyError as error:
        notes.append(f"the model was not used: {error}")
        return []
    return [TrainingOracle(site.of)]


class _Controller:
    """Prediction source that asks the controller, which predicts from its history of measured runs.

    If the controller does not answer, a note is printed and the other prediction sources are used.
    """

    def __init__(self, args: argparse.Namespace, notes: list[str], total_timeout_s: float | None) -> None:
        self._args, self._notes, self._total_timeout_s = args, notes, total_timeout_s

    def predict(self, request: PredictionRequest) -> Prediction | None:
        """Request a prediction from the controller.

        The result is None if the controller knows no similar runs or does not answer.

        Raises:
            ForbiddenError: the job belongs to another user.
        """
        from slurm_energy.oracle.prediction import Prediction

        plain = {name: value for name, value in dataclasses.asdict(request).items() if value is not None}
        try:
            client = connection.connect(self._args, total_timeout_s=self._total_timeout_s)
            predictions = client.post("/v1/predict", {"requests": [plain]}).get("predictions")
            first = predictions[0] if isinstance(predictions, list) and predictions else None
            return None if first is None else Prediction.from_json(first)
        except UnavailableError as error:
            self._notes.append(f"history was not used: {error}")
        except ValueError as error:
            self._notes.append(f"the response about history is invalid: {error}")
        return None


def _login_name() -> str | None:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def _requested(script: BatchScript, request: PredictionRequest) -> str:
    parts = [_count(script.nodes, "node"), _count(script.cpus, "CPU")]
    if script.gpus:
        parts.append(_count(script.gpus, "GPU") + (f" ({script.gpu_kind})" if script.gpu_kind else ""))
    parts.append(f"limit {format_duration(script.time_limit_s) or 'none'}")
    parts += [f"partition {script.partition}"] if script.partition else []
    parts.append(f"policy {request.policy}")
    return ", ".join(shown(part) for part in parts)


def _count(number: int, name: str) -> str:
    return f"{number} {name}" + ("" if number == 1 else "s")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _SHORT_S else format_duration(seconds)


def _parts(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.mean, estimate.low, estimate.high


def _job_json(script: BatchScript) -> dict[str, Any]:
    data = dataclasses.asdict(script)
    del data["notes"]
    return data
