"""Selection of the correction factors with which a workload is predicted.

A set of factors (`Scalars`) describes how one workload deviates from the training model on one kind of
device. A workload with measurements is predicted with its own set. Another workload is predicted with all
sets, and the predictions are averaged. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_energy.oracle.training.demand import demand
from slurm_energy.oracle.training.parameters import SHARED_WEIGHTS, Calibration, Scalars
from slurm_energy.oracle.training.saturation import SATURATIONS
from slurm_energy.oracle.training.timing import DeviceParameters, device_s, step_times
from slurm_energy.oracle.workload import Optimizer, WorkloadProfile

REFERENCE_BATCH = 32.0
_MAX_SAMPLE_S = 0.05


def members(
    calibration: Calibration,
    profile: WorkloadProfile,
    device: DeviceParameters,
    precision: str,
    optimizer: Optimizer,
) -> list[Scalars]:
    """Return the workload factors from which a workload is predicted, as one or several sets.

    Workload factors are parameters of the training model. If the workload was measured on this kind of
    device, its own factors are returned. A workload that was never measured there may resemble any
    measured workload. In this case the result has several sets: the factors of each measured workload,
    and neutral factors. The caller averages the predictions from all sets.

    The host's seconds per sample differ much between workloads. They are therefore not copied from the
    other workload. Instead, the ratio of the host's to the device's seconds per sample is copied
    (`Calibration.supply_ratios`).

    Args:
        calibration: calibration of the kind of device.
        profile: the workload. If it has shared weights but no own factors, the factors of
            `[workloads.shared-weights]` are used.
        device: peak rates of the device.
        precision: number format of matrix products.
        optimizer: the optimizer of the training job.
    """
    own_factors = calibration.workloads.get(profile.name)
    if own_factors is None and profile.shared_weights:
        own_factors = calibration.workloads.get(SHARED_WEIGHTS)
    if own_factors is not None:
        return [own_factors]
    candidates = [Scalars()]
    for name, factors in calibration.workloads.items():
        ratio = calibration.supply_ratios.get(name)
        if name == SHARED_WEIGHTS:
            continue
        busy_s = device_sample_s(calibration, profile, device, precision, optimizer, factors)
        sample_s = min(_MAX_SAMPLE_S, (ratio or 0.0) * busy_s)
        candidates.append(replace(factors, sample_s=max(Scalars().sample_s, sample_s)))
    return candidates


def device_sample_s(
    calibration: Calibration,
    profile: WorkloadProfile,
    device: DeviceParameters,
    precision: str,
    optimizer: Optimizer,
    factors: Scalars,
) -> float:
    """Return the seconds that the device computes per training sample.

    The value holds at batch size `REFERENCE_BATCH` and the maximum clock. Communication and waiting for the
    host are not included.
    """
    work = demand(profile, REFERENCE_BATCH, precision, optimizer)
    times = step_times(work, device, calibration.theta, factors, SATURATIONS[calibration.saturation])
    return float(device_s(times, calibration.theta)) / REFERENCE_BATCH


def geometric_mean(values: Sequence[Any]) -> Any:
    """Return the elementwise geometric mean of several predictions of the same training steps.

    The predictions come from models of one ensemble, each with a different set of fitted factors.
    """
    if len(values) == 1:
        return values[0]
    return np.exp(sum(np.log(value) for value in values) / len(values))
