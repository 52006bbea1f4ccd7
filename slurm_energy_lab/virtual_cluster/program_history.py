"""Power and response curves of the lab's programs, as a site knows them from earlier runs.

A response curve is the relative time and power under power limits. It is measured on the node model, once
per program and hardware, as `SteadyState` does for tuning.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint
from slurm_energy_lab.model import NodeProfile
from slurm_energy_lab.model.programs import workload_spec
from slurm_energy_lab.model.steady_state import SteadyState

_LIMIT_SHARES = (0.35, 0.5, 0.65, 0.8, 0.9)
"""Power limits at which earlier runs were measured, as shares of the highest limit. The tuner also measures
GPUs at their lowest limit."""


@dataclass(frozen=True, slots=True)
class ProgramResponse:
    """Power of one device that runs a program without a power limit, and the effect of power limits.

    Attributes:
        mean_watts: mean power of the device over the run.
        peak_watts: power of the device in the phase with the highest power.
        package_watts: peak power of a CPU package. For programs on CPUs, the package is the device itself.
        curve: response curve: relative time and power of the program at several power limits.
    """

    mean_watts: float
    peak_watts: float
    package_watts: float
    curve: ResponseCurve


class ProgramHistory:
    """Power and response curves of programs on emulated nodes, by hardware and program.

    A response curve states the time and power of a program at different power limits. It is measured when it
    is first requested.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], ProgramResponse] = {}
        self._truth: dict[str, SteadyState] = {}

    def record(self, profile: NodeProfile, device: str, program: str) -> ProgramResponse:
        """Return the power and the response curve of a program on a kind of hardware.

        The response curve states time and power at several hardware settings. The program runs on all devices
        of a node. It is measured at the first request for this hardware. Later requests return the stored
        measurement.
        """
        key = profile.name, program
        if key not in self._records:
            self._records[key] = self._measure(profile, device, program)
        return self._records[key]

    def _measure(self, profile: NodeProfile, device: str, program: str) -> ProgramResponse:
        truth = self._truth.setdefault(profile.name, SteadyState(profile, device))
        if device == "gpu" and profile.gpu is not None:
            kind, low, high = profile.gpu.name, profile.gpu.min_limit_watts, profile.gpu.default_limit_watts
            limits = [low, *(share * high for share in _LIMIT_SHARES if share * high > low)]
            points = [OperatingPoint(gpu_limit_watts=watts) for watts in limits]
        else:
            kind, high = profile.cpu.model_name, profile.cpu.tdp_watts
            points = [OperatingPoint(package_limit_watts=share * high) for share in _LIMIT_SHARES]
        seconds, mean, peak, package = self._run(truth, program, UNTUNED)
        measured = []
        for point in points:
            limited_s, watts, _, _ = self._run(truth, program, point)
            ratios = max(1.0, limited_s / seconds), min(1.0, watts / mean)
            measured.append(ResponsePoint(point, *ratios, CurveSource.EARLIER_RUNS, count=1))
        return ProgramResponse(mean, peak, package, ResponseCurve(kind, program, tuple(measured)))

    def _run(
        self, truth: SteadyState, program: str, point: OperatingPoint
    ) -> tuple[float, float, float, float]:
        """Run a program on the node model at an operating point.

        Return the time per unit of progress, the mean and the peak power of a device, and the peak power of
        a CPU package.
        """
        seconds = joules = peak = package = 0.0
        for phase, count in Counter(workload_spec(program).phases).items():
            figures = truth.phase(point, phase)
            watts = figures.package_watts if figures.gpu_watts is None else figures.gpu_watts
            seconds += count * figures.seconds
            joules += count * figures.seconds * watts
            peak, package = max(peak, watts), max(package, figures.package_watts)
        return seconds, joules / seconds, peak, package
