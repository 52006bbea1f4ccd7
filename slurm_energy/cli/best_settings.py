"""Recommendation of the best known settings for a job before it is submitted.

The commands `senergy predict --best` and `senergy template render --best` use this module.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.config import BoundsConfig
from slurm_energy.errors import EnergyError, NotFoundError, UnavailableError, UsageError
from slurm_energy.policies.catalogue import OBJECTIVES
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.quantities import format_duration, parse_percent, shown
from slurm_energy.spelling import suggestion_or_list
from slurm_energy.tuning.known_curve import best_point, ratios_at_gpu_limit
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.response_curve import ResponseCurve, ResponsePoint

if TYPE_CHECKING:
    from slurm_energy.oracle.prediction import Prediction, PredictionRequest

_FLAGS = {
    "gpu_limit_watts": ("--energy-gpu-cap", "gpu_cap_watts"),
    "gpu_clock_mhz": ("--energy-gpu-clock", "gpu_clock_mhz"),
    "cpu_max_mhz": ("--energy-cpu-freq", "cpu_freq_mhz"),
    "gpu_power_profile": ("--energy-power-profile", None),
}
"""Flag and bounds of each knob of an operating point, for knobs that a job can set by a flag."""
_HARMFUL_EDP = 1.05
"""A cap counts as harmful if it multiplies the energy-delay product by this factor or more."""
_HISTORY = "history"
"""Source of a prediction whose run time comes from finished runs of similar jobs.

The training model assumes one epoch instead, and the nameplate assumes the time limit.
"""
UNKNOWN = "no run of this program at other settings is known, and the training model does not know it"
UNKNOWN_TODO = "name the program (--energy-model) and the GPUs (--gpus=KIND:N), or run it with policy edp"


@dataclass(frozen=True, slots=True)
class BestSettings:
    """The best known settings of a job for its next submission.

    Attributes:
        objective: quantity that the settings minimise (energy, EDP or ED2P), with the maximum slowdown.
        curve: the response curve from which the settings come.
        point: operating point with the lowest value of the objective; None if no setting is better than the
            untuned job.
        time_limit_s: time limit within which the job ends in 95 of 100 cases, rounded up to a multiple of
            60; None if no run of a similar job is known.
    """

    objective: Objective
    curve: ResponseCurve
    point: ResponsePoint | None
    time_limit_s: float | None = None

    @property
    def flags(self) -> dict[str, str]:
        """Options of sbatch that request the best settings, with their values, and `--time` if known."""
        point = OperatingPoint() if self.point is None else self.point.point
        values = {flag: getattr(point, knob) for knob, (flag, _) in _FLAGS.items()}
        flags = {
            flag: value if isinstance(value, str) else f"{value:g}"
            for flag, value in values.items()
            if value is not None
        }
        if self.time_limit_s is not None:
            flags["--time"] = format_duration(self.time_limit_s)
        return flags

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a dict for JSON."""
        return {
            "objective": self.objective.name,
            "slowdown_limit": self.objective.slowdown_limit,
            "hardware": self.curve.hardware,
            "point": None if self.point is None else self.point.to_json(),
            "time_limit_s": self.time_limit_s,
            "flags": self.flags,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines that the terminal shows about the best settings.

        They state the expected changes of time, energy and EDP, and the options of sbatch.
        """
        if self.point is None:
            yield f"{self.objective.name}: no known setting is better than the untuned job"
        else:
            time, power = self.point.time_ratio, self.point.power_ratio
            changes = {"time": time, "energy": time * power, "EDP": time * time * power}
            text = ", ".join(f"{name} {100 * (ratio - 1):+.0f} %" for name, ratio in changes.items())
            yield f"{self.objective.name}: {self.point.point}: {text} ({_origin(self.point)})"
        if self.flags:
            yield " ".join(f"{flag}={value}" for flag, value in self.flags.items())


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options --best and --slowdown to a parser."""
    parser.add_argument("--best", metavar="OBJECTIVE", help=f"best known settings: {', '.join(OBJECTIVES)}")
    parser.add_argument(
        "--slowdown",
        metavar="PERCENT",
        help="with --best: maximum slowdown (default for energy: the limit of the site)",
    )


def objective_of(args: argparse.Namespace) -> Objective | None:
    """Return the objective of --best with its slowdown limit; None if --best was not given.

    Raises:
        UsageError: the objective is unknown, or --slowdown is malformed or given without --best.
    """
    if args.best is None:
        if args.slowdown is not None:
            raise UsageError("--slowdown", "given without --best", "name an objective, as in --best edp")
        return None
    if args.best not in OBJECTIVES:
        todo = suggestion_or_list(args.best, OBJECTIVES)
        raise UsageError(f"--best: '{shown(args.best)}' is not an objective", todo=todo)
    limit_percent = None
    if args.slowdown is not None:
        limit_percent = parse_percent(args.slowdown, "--slowdown")
    elif args.best == "energy":
        limit_percent = connection.configuration(args).tuning.slowdown_limit_percent
    return Objective(args.best, None if limit_percent is None else limit_percent / 100)


def known_curve(
    args: argparse.Namespace, request: PredictionRequest, notes: list[str]
) -> ResponseCurve | None:
    """Return the response curve of a job, or None if no curve is known.

    The response curve states the job's relative time and power at different settings. A curve that was
    learned from earlier runs is preferred. Without a learned curve, the function computes a curve with
    the training model.

    Args:
        args: command line, with the options of the connection.
        request: prediction request for the job.
        notes: list to which the function adds its reason for not using a source.
    """
    try:
        return _learned(args, request) or _modelled(args, request)
    except (UnavailableError, NotFoundError) as error:
        notes.append(f"learned response curves were not used: {error}")
        return _modelled(args, request)


def best_settings(
    curve: ResponseCurve, objective: Objective, bounds: BoundsConfig, untuned: Prediction | None
) -> BestSettings:
    """Return the best settings that a job can request with the options of sbatch.

    Settings outside the bounds of the site are not considered.

    Args:
        curve: response curve of the job.
        objective: quantity that the settings minimise (energy, EDP or ED2P), with the maximum slowdown.
        bounds: minimum and maximum settings that the site allows.
        untuned: prediction for the job without power caps; None if the time is unknown. Only a prediction
            from history yields a time limit.
    """
    point = best_point(curve, objective, lambda candidate: _can_request(candidate, bounds))
    limit_s = None
    if untuned is not None and untuned.source == _HISTORY:
        ratio = 1.0 if point is None else point.time_ratio + (point.time_error or 0.0)
        limit_s = 60.0 * math.ceil(untuned.duration_s.high * ratio / 60.0)
    return BestSettings(objective, curve, point, limit_s)


def cap_advice(curve: ResponseCurve, gpu_cap_watts: float) -> str | None:
    """Return a warning if a GPU cap is predicted to raise a job's energy-delay product, else None."""
    ratios = ratios_at_gpu_limit(curve, gpu_cap_watts)
    if ratios is None or ratios[0] ** 2 * ratios[1] < _HARMFUL_EDP:
        return None
    time, power = ratios
    return (
        f"a cap of {gpu_cap_watts:g} W per GPU multiplies the EDP by {time * time * power:.2g}"
        f" and the time by {time:.2g} (predicted, {curve.points[0].source.value})"
    )


def without_caps(request: PredictionRequest) -> PredictionRequest:
    """Return a copy of a request without power caps."""
    return dataclasses.replace(request, cap_watts=None, gpu_cap_watts=None)


def _can_request(point: OperatingPoint, bounds: BoundsConfig) -> bool:
    """Return whether users can request an operating point with flags of a job.

    This requires a flag for every knob (setting) of the point, and a value within the bounds of the site.
    """
    for knob, value in point.to_json().items():
        if knob not in _FLAGS:
            return False
        key = _FLAGS[knob][1]
        low, high = getattr(bounds, key) if key else (0.0, 0.0)
        if key and not low <= value <= high:
            return False
    return True


def _origin(point: ResponsePoint) -> str:
    if point.count == 0:
        return f"predicted, {point.source.value}"
    return f"measured {point.count} times, {point.source.value}"


def _learned(args: argparse.Namespace, request: PredictionRequest) -> ResponseCurve | None:
    """Return what senergyctld has learned about a job's program from earlier runs.

    The result is a response curve: time and power of the program at different settings.

    Raises:
        UnavailableError: the controller does not answer.
    """
    client = connection.connect(args)
    for workload in (request.fingerprint, request.model):
        if not workload:
            continue
        query = {"workload": workload} | ({"user": request.user} if request.user else {})
        answer = client.get("/v1/tuning", query)
        programs = answer.get("programs") if isinstance(answer, Mapping) else None
        curves = [curve for program in programs or () if (curve := _curve(program)) is not None]
        fitting = [curve for curve in curves if _is_hardware(curve.hardware, request.gpu_kind)]
        if len(fitting) == 1 or (fitting and request.gpu_kind):
            return fitting[0]
    return None


def _curve(program: Any) -> ResponseCurve | None:
    data = program.get("curve") if isinstance(program, Mapping) else None
    if not data or not data.get("points"):
        return None
    try:
        return ResponseCurve.from_json(data)
    except UsageError:
        return None


def _is_hardware(product: str, gpu_kind: str | None) -> bool:
    """Return whether a GPU product is of the kind `gpu_kind` (a Slurm GRES type).

    If `gpu_kind` is None, return True.
    """
    if gpu_kind is None:
        return True
    from slurm_energy.oracle.hardware.hardware_files import find_hardware

    try:
        return find_hardware(product).name == find_hardware(gpu_kind).name
    except EnergyError:
        return gpu_kind.lower() in product.lower().replace("-", " ").split()


def _modelled(args: argparse.Namespace, request: PredictionRequest) -> ResponseCurve | None:
    if not request.model or not request.gpu_kind:
        return None
    try:
        from slurm_energy.oracle.site_files import use_site
        from slurm_energy.tuning.oracle_curve import oracle_curve

    except ImportError:
        return None
    settings = connection.configuration(args).oracle
    site = use_site(settings.calibrations, settings.hardware)
    try:
        return oracle_curve(request.model, request.gpu_kind, site.of)
    except ImportError:  # numpy is loaded at the first use
        return None
