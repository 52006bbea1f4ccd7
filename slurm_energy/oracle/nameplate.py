"""Predictions from the time limit and the design power (TDP) of the requested hardware.

These predictions are used if no other source can predict a job. They are based on no measurement, so their
ranges are wide.
"""

from __future__ import annotations

from slurm_energy.errors import EnergyError
from slurm_energy.oracle.hardware import Hardware, find_hardware
from slurm_energy.oracle.prediction import Estimate, Prediction, PredictionRequest, PredictionSource

NO_LIMIT_S = 86400.0
"""Run time limit in seconds that is assumed for a job without a time limit."""

_GPU_TDP_WATTS = 400.0  # for an unnamed kind of GPU; current GPUs have 70 to 1000
_NODE_TDP_WATTS = 480.0  # two sockets of 240 W (Xeon 8358 and the like) with 32 cores each
_CORE_TDP_WATTS = 7.5
_GPU_SHARES = (
    0.7,
    0.2,
    1.0,
)  # fractions of the TDP: mean (middle of the range of training jobs), low (idle), high (full TDP)
_IDLE_SHARE = 0.3  # fraction of a core's TDP
_UNKNOWN_FACTOR = 2.5  # largest ratio between the TDP of an unnamed kind of GPU and the assumed TDP


class NameplateOracle:
    """Oracle that predicts every job from its time limit and the TDP of the requested hardware.

    Every run time up to the time limit is assumed equally likely. The power is assumed to be a fraction of
    the TDP.

    Args:
        cpu_kind: name of the hardware file of the CPU sockets; None means unknown. Each node is assumed to
            have two sockets.
    """

    def __init__(self, cpu_kind: str | None = None) -> None:
        self._cpu = _hardware(cpu_kind)

    def predict(self, request: PredictionRequest) -> Prediction:
        """Return the prediction for a job. Every job can be predicted."""
        limit_s, notes = request.time_limit_s, []
        if limit_s is None:
            limit_s = NO_LIMIT_S
            notes.append("no time limit is given: one day is assumed")
        duration = Estimate(limit_s / 2, limit_s * 0.05, limit_s * 0.95)
        gpu, named = self._gpus(request)
        cpu = self._cpus(request)
        if request.gpus and not named:
            notes.append(f"no known kind of GPU is named: {_GPU_TDP_WATTS:g} W per GPU is assumed")
        power = _capped(Estimate(gpu.mean + cpu.mean, gpu.low + cpu.low, gpu.high + cpu.high), request)
        return Prediction(
            duration_s=duration,
            power_watts=power,
            energy_joules=Estimate(*(a * b for a, b in zip(_parts(duration), _parts(power), strict=True))),
            source=PredictionSource.NAMEPLATE,
            basis="time limit and TDP of the requested hardware; no measurements",
            notes=tuple(notes),
        )

    def _gpus(self, request: PredictionRequest) -> tuple[Estimate, bool]:
        count, hardware = request.gpus or 0, _hardware(request.gpu_kind)
        tdp_watts = count * (hardware.tdp_watts if hardware else _GPU_TDP_WATTS)
        factor = 1.0 if hardware else _UNKNOWN_FACTOR
        mean, low, high = (tdp_watts * share for share in _GPU_SHARES)
        cap_watts = count * (request.gpu_cap_watts or float("inf")) if count else 0.0
        figures = (min(watts, cap_watts) for watts in (mean, low / factor, high * factor))
        return Estimate(*figures), hardware is not None

    def _cpus(self, request: PredictionRequest) -> Estimate:
        """Return the estimated power in watts of the CPUs on all nodes of the job.

        The estimate has a range. Its lower end assumes idle cores. Its upper end assumes that all CPUs of
        the nodes are busy, because the job may use the nodes exclusively.
        """
        nodes = request.nodes or 1
        node_watts = 2 * self._cpu.tdp_watts if self._cpu else _NODE_TDP_WATTS
        core_watts = self._cpu.tdp_watts / self._cpu.processors if self._cpu else _CORE_TDP_WATTS
        share = core_watts * (request.cpus or nodes)
        high = max(node_watts * nodes, share)
        return Estimate(share, share * _IDLE_SHARE, high)


def _hardware(name: str | None) -> Hardware | None:
    """Return a kind of device, or None if no file has this name.

    GRES types in Slurm are chosen by the site and need not name a hardware file.
    """
    if name is None or name.endswith(".toml"):
        return None
    try:
        return find_hardware(name)
    except EnergyError:
        return None


def _capped(power: Estimate, request: PredictionRequest) -> Estimate:
    if request.cap_watts is None:
        return power
    max_watts = request.cap_watts * (request.nodes or 1)
    return Estimate(*(min(value, max_watts) for value in _parts(power)))


def _parts(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.mean, estimate.low, estimate.high
