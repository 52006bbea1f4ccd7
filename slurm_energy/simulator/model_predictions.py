"""Predictions for simulated jobs that train neural networks.

The predictions come from the training model of the predictor (oracle).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.oracle.hardware import find_hardware
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle
from slurm_energy.oracle.workload import find_profile
from slurm_energy.simulator.scenario_schema import ModelSection
from slurm_energy.simulator.workloads.workload_generator import ShapePrediction


def predict(
    model: ModelSection, hardware: str, gpus: int, batch: int, cap_watts: float = math.inf
) -> ShapePrediction | None:
    """Return the prediction of the training oracle (predictor) for one way to train a model.

    Args:
        model: the model and the number of samples to train.
        hardware: name of the GPU's hardware file.
        gpus: number of GPUs.
        batch: batch size per GPU.
        cap_watts: power limit per GPU in watts; infinity means no limit.

    Returns:
        The prediction; None if the batch does not fit in the GPU's memory, or the GPU does not support
        the precision.

    Raises:
        NotFoundError: the workload profile or the hardware is unknown.
    """
    samples = model.samples * model.epochs
    return _predicted(model.profile, model.precision, samples, hardware, gpus, batch, cap_watts)


@functools.cache
def _oracle() -> TrainingOracle:
    return TrainingOracle()


@functools.cache
def _predicted(
    profile: str, precision: str, samples: float, hardware: str, gpus: int, batch: int, cap_watts: float
) -> ShapePrediction | None:
    kind = find_hardware(hardware)
    try:
        kind.matrix_flops_per_s(precision)
    except UsageError:
        return None
    row = (find_profile(profile), kind, precision, float(batch), float(gpus), samples, cap_watts)
    prediction = _oracle().predict_many(TrainingAlternatives.of([row]))
    if not bool(np.all(prediction.fits)):
        return None
    max_watts = gpus * min(kind.tdp_watts, cap_watts)
    return ShapePrediction(float(prediction.duration_s[0]), float(prediction.power_watts[0]), max_watts)
