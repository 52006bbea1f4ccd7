"""Predictions of the training model for workloads of models. Knows scenarios and the oracle, no schedule."""

from __future__ import annotations

import functools
import math

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.oracle.hardware import find_hardware
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle
from slurm_energy.oracle.workload import find_profile
from slurm_energy.simulator.scenario_schema import ModelSection
from slurm_energy.simulator.workload_generator import ShapePrediction


def predict(
    model: ModelSection, hardware: str, gpus: int, batch: int, cap_watts: float = math.inf
) -> ShapePrediction | None:
    """Return what the training model says of a job in one shape.

    Args:
        model: what is trained, and for how many samples.
        hardware: the oracle's name of the GPU.
        gpus: number of GPUs.
        batch: samples per GPU and pass.
        cap_watts: power limit per GPU.

    Returns:
        The prediction; None if the batch does not fit in the GPU's memory, or the GPU has no unit for the
        precision.

    Raises:
        NotFoundError: profile or hardware are not known.
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
    found = _oracle().predict_many(TrainingAlternatives.of([row]))
    if not bool(np.all(found.fits)):
        return None
    most = gpus * min(kind.tdp_watts, cap_watts)
    return ShapePrediction(float(found.duration_s[0]), float(found.power_watts[0]), most)
