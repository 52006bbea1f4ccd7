"""Prediction for the GPU shapes of a job of which only some were measured.

A shape is a type and number of GPUs on which the job may run. The module computes relative run times and
powers. All functions are pure.

Measured runs on one GPU type give the run time of the job on this type. For other types and other numbers of
GPUs, the run time is scaled by a ratio. The ratio comes from the training model if the job names a neural
network, otherwise from the peak figures of the GPU types.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from slurm_energy.errors import EnergyError
from slurm_energy.oracle.hardware import find_hardware
from slurm_energy.oracle.history.similarity import LEVELS
from slurm_energy.priority.prediction import HISTORY, QueuePredictions
from slurm_energy.scheduling.queue import Bools, Floats, Ints

GPU_SCALING_EXPONENT: Final = 0.85
"""Exponent of the number of GPUs in the speed: about 10 % of the speed is lost per doubling. This is an
assumption for jobs without measurements or a named model.
"""
_RAISED_RATIO: Final = 1.01  # up to this ratio, a time counts as not raised
_NAMES_GPU_KIND: Final = np.array(
    [*("gpu_kind" in level.optional for level in LEVELS), False]
)  # the last element belongs to level -1


def relative_by_peaks(gpus: Ints, gpu_kind: Sequence[str]) -> tuple[Floats, Floats]:
    """Return relative run time and relative watts of GPU shapes, derived from memory bandwidth and TDP.

    Bandwidth is used because few programs reach the arithmetic peak of a GPU. The values of GPU types without
    a hardware file are NaN.
    """
    time, watts = np.full(len(gpus), np.nan), np.full(len(gpus), np.nan)
    for row, (count, gpu_type) in enumerate(zip(gpus.tolist(), gpu_kind, strict=True)):
        try:
            hardware = find_hardware(gpu_type)
        except EnergyError:
            continue
        time[row] = 1.0 / (count**GPU_SCALING_EXPONENT * hardware.memory_bytes_per_s)
        watts[row] = count * hardware.tdp_watts
    return time, watts


def is_measured(predicted: QueuePredictions) -> Bools:
    """Return for each prediction whether it is based on measured runs in the same GPU shape.

    A GPU shape is a number and a type of GPUs.
    """
    of_kind: Bools = (predicted.source == HISTORY) & _NAMES_GPU_KIND[predicted.level]
    return of_kind


def harmonized(
    predicted: QueuePredictions, job: Ints, time: Floats, watts: Floats, limit_s: Floats
) -> QueuePredictions:
    """Return a copy of the predictions that is consistent among the GPU shapes of each job.

    A GPU shape is a number and a type of GPUs. Some shapes of a job may have been measured. The predictions
    of its other shapes are then scaled from the measured shape with the most runs. If no shape has been
    measured, the average over the shapes equals the general prediction for the job.

    The scaling uses the predictions before lower bounds and factors are applied (see `prediction_guard`). If
    a lower bound or a factor raises the prediction of a measured shape, the predictions of all shapes of the
    job are raised by the same ratio. On average, the predicted times are then not below the times that would
    be predicted without any runs. Decoys are cheap jobs that a user runs to lower predictions. Decoys in one
    shape therefore cannot make another shape look fast.

    Args:
        predicted: predictions in m rows; the rows of one job are adjacent.
        job: a number that identifies the job of each row, shape (m,).
        time: relative run times in any unit; NaN means unknown, so that the predictions of the job stay
            unchanged.
        watts: relative watts in any unit; NaN has the same meaning as in `time`.
        limit_s: maximum run time of each row in seconds; NaN for none.
    """
    exact, power = is_measured(predicted), predicted.power_watts.copy()
    guarded, seconds = predicted.time_s, predicted.time_s.copy()
    for rows in np.split(np.arange(len(job)), np.flatnonzero(np.diff(job)) + 1) if len(job) else ():
        if np.isnan(time[rows] + watts[rows]).any():
            continue
        measured_rows, source_s = rows[exact[rows]], predicted.source_time_s
        seconds[rows] = source_s[rows]
        if len(measured_rows):
            raised = float(np.max(guarded[measured_rows] / source_s[measured_rows]))
            first = measured_rows[np.argmax(predicted.runs[measured_rows])]
            base = seconds[first] / time[first], power[first] / watts[first]
        else:
            raised = _geometric_mean(guarded[rows]) / _geometric_mean(source_s[rows])
            base = (
                _geometric_mean(seconds[rows]) / _geometric_mean(time[rows]),
                _geometric_mean(power[rows]) / _geometric_mean(watts[rows]),
            )
        others = rows[~exact[rows]]
        seconds[others], power[others] = base[0] * time[others], base[1] * watts[others]
        if len(measured_rows) and raised > _RAISED_RATIO:
            raised = max(raised, _geometric_mean(guarded[rows]) / _geometric_mean(seconds[rows]))
        seconds[rows] *= raised
    return replace(predicted, time_s=np.fmin(seconds, limit_s), power_watts=power)


def _geometric_mean(values: Floats) -> float:
    """Return the geometric mean of the values; 0 if one of them is 0."""
    return math.exp(float(np.mean(np.log(values)))) if np.all(values > 0) else 0.0
