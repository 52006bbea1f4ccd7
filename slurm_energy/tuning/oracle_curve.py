"""Response curves of known workloads, computed with the calibrations of the predictor (oracle).

A response curve states time and power at several GPU power limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.candidates import GpuHardware, gpu_limits
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint

if TYPE_CHECKING:
    from slurm_energy.oracle.training.parameters import Calibration

_BATCHES: Final = (8.0, 32.0, 128.0)
"""Batch sizes whose mean is predicted, because the batch size of a job is not known."""
_MAX_POINTS: Final = 12
_CALIBRATED_ERROR: Final = 0.03
_TRANSFERRED_ERROR: Final = 0.08
GPU_SHARE: Final = 0.8
"""Share of the GPUs in the power of a training job, if it was not measured."""


def oracle_curve(
    model: str, hardware: str, calibration_of: Callable[[str], Calibration], gpu_share: float = GPU_SHARE
) -> ResponseCurve | None:
    """Return the predicted response of a training workload to GPU power limits.

    The response comes from the predictor (oracle). The result is None if the oracle does not know the
    workload or the GPU.

    Args:
        model: value of `--energy-model`. Only names are accepted, never paths, because users choose this
            value.
        hardware: product name of the GPU.
        calibration_of: function that returns the oracle's calibration for the name of a GPU product.
        gpu_share: the fraction of the job's power that the GPUs draw. The remaining power is assumed to be
            constant.
    """
    from slurm_energy.oracle.hardware import find_hardware
    from slurm_energy.oracle.training_oracle import (
        TrainingAlternatives,
        TrainingOracle,
        default_precision,
    )
    from slurm_energy.oracle.workload import find_profile

    if model.endswith(".json") or hardware.endswith(".toml"):
        return None
    try:
        profile, kind = find_profile(model), find_hardware(hardware)
        precision = default_precision(kind)
        kind.matrix_flops_per_s(precision)
    except (NotFoundError, UsageError):
        return None
    if kind.kind != "gpu":
        return None
    limits = gpu_limits(GpuHardware(1, kind.tdp_watts, kind.min_cap_watts), _MAX_POINTS)
    caps = [math.inf, *(point.gpu_limit_watts or math.inf for point in limits)]
    rows = [(profile, kind, precision, batch, 1.0, 1.0, cap) for cap in caps for batch in _BATCHES]
    oracle, alternatives = TrainingOracle(calibration_of), TrainingAlternatives.of(rows)
    predicted = oracle.predict_many(alternatives)
    time = predicted.step_s.reshape(len(caps), -1)
    power = predicted.power_watts.reshape(len(caps), -1)
    error = _TRANSFERRED_ERROR if oracle.transferred(alternatives).any() else _CALIBRATED_ERROR
    points = []
    for row, limit in enumerate(limits, 1):
        times = [math.log(ratio) for ratio in (time[row] / time[0]).tolist()]
        powers = [math.log(ratio) for ratio in (power[row] / power[0]).tolist()]
        mean = math.fsum(times) / len(times)
        spread = math.sqrt(math.fsum((one - mean) ** 2 for one in times) / len(times))
        gpu_ratio = math.exp(math.fsum(powers) / len(powers))
        points.append(
            ResponsePoint(
                OperatingPoint(gpu_limit_watts=limit.gpu_limit_watts),
                math.exp(mean),
                1.0 - gpu_share + gpu_share * gpu_ratio,
                CurveSource.ORACLE,
                time_error=math.hypot(error * _error_share(mean), spread),
            )
        )
    return ResponseCurve(hardware, model, tuple(points))


def _error_share(log_time: float) -> float:
    """Return the factor that scales down the error of a predicted run time.

    The factor grows with the predicted slowdown, from 0.3 for a small slowdown up to 1.

    Args:
        log_time: logarithm of the predicted time ratio, i.e. of the predicted slowdown.
    """
    return min(1.0, max(0.3, log_time / 0.1))
