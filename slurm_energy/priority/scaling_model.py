"""How shapes of one job compare where not each of them has been measured. Pure.

Runs on one kind of GPU say how long a job takes there; for another kind, and for more or fewer GPUs, they
count in proportion: by the training model if the job names one, else by what the kinds are able to do.
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
"""Speed grows with the number of GPUs to this power, about 10 % lost in each doubling: assumed, where nothing
is measured and no model is named."""
_RAISED_RATIO: Final = 1.01  # a time that was raised by less rests on its runs
_NAMES_GPU_KIND: Final = np.array(
    [*("gpu_kind" in level.takes for level in LEVELS), False]
)  # the last for -1


def relative_by_peaks(gpus: Ints, gpu_kind: Sequence[str]) -> tuple[Floats, Floats]:
    """Return time and watts of shapes relative to each other, from bandwidth of memory and TDP.

    Bandwidth, as few programs use a GPU's peak of arithmetic. NaN where no file tells of the kind.
    """
    time, watts = np.full(len(gpus), np.nan), np.full(len(gpus), np.nan)
    for row, (count, kind) in enumerate(zip(gpus.tolist(), gpu_kind, strict=True)):
        try:
            hardware = find_hardware(kind)
        except EnergyError:
            continue
        time[row] = 1.0 / (count**GPU_SCALING_EXPONENT * hardware.memory_bytes_per_s)
        watts[row] = count * hardware.tdp_watts
    return time, watts


def is_measured(predicted: QueuePredictions) -> Bools:
    """Return which figures rest on runs in this very shape."""
    of_kind: Bools = (predicted.source == HISTORY) & _NAMES_GPU_KIND[predicted.level]
    return of_kind


def harmonized(
    predicted: QueuePredictions, job: Ints, time: Floats, watts: Floats, limit_s: Floats
) -> QueuePredictions:
    """Return figures that agree with each other within each job.

    Where a shape has been measured, those that have not follow from the one with most runs. Where none has,
    what is known of the job in general holds for its shapes on average.

    Shapes of one job compare by what their sources say. What bounds and factors (see `guard`) add to a
    measured shape is added to all shapes of the job, which are then no shorter on average than without any
    runs: decoys in one shape must not make another one look quick.

    Args:
        predicted: m rows, those of a job side by side.
        job: which job, shape (m,).
        time: relative times, any unit; NaN: not known, then the job is left as it is.
        watts: relative watts likewise.
        limit_s: longest time of each; NaN for none.
    """
    exact, power = is_measured(predicted), predicted.power_watts.copy()
    guarded, seconds = predicted.time_s, predicted.time_s.copy()
    for rows in np.split(np.arange(len(job)), np.flatnonzero(np.diff(job)) + 1) if len(job) else ():
        if np.isnan(time[rows] + watts[rows]).any():
            continue
        known, said = rows[exact[rows]], predicted.source_time_s
        seconds[rows] = said[rows]
        if len(known):
            raised = float(np.max(guarded[known] / said[known]))
            first = known[np.argmax(predicted.runs[known])]
            base = seconds[first] / time[first], power[first] / watts[first]
        else:
            raised = _geometric_mean(guarded[rows]) / _geometric_mean(said[rows])
            base = (
                _geometric_mean(seconds[rows]) / _geometric_mean(time[rows]),
                _geometric_mean(power[rows]) / _geometric_mean(watts[rows]),
            )
        others = rows[~exact[rows]]
        seconds[others], power[others] = base[0] * time[others], base[1] * watts[others]
        if len(known) and raised > _RAISED_RATIO:
            raised = max(raised, _geometric_mean(guarded[rows]) / _geometric_mean(seconds[rows]))
        seconds[rows] *= raised
    return replace(predicted, time_s=np.fmin(seconds, limit_s), power_watts=power)


def _geometric_mean(values: Floats) -> float:
    """Return the geometric mean; 0 if one is."""
    return math.exp(float(np.mean(np.log(values)))) if np.all(values > 0) else 0.0
