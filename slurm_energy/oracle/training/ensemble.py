"""Which factors to predict a workload with: its own, or in turn those of every workload measured. Pure."""

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
    """Return the factors of a workload; where there are several, predictions are averaged.

    A workload never measured on this kind of device may be like any that was: its members are the factors of
    all of those, and neutral ones. The host's seconds per sample mean nothing for other samples; what is
    taken over is their ratio to the device's seconds (`Calibration.supply_ratios`).

    Args:
        calibration: of the kind of device.
        profile: the workload; one with shared weights takes `[workloads.shared-weights]` if it has no own.
        device: peak figures.
        precision: of matrix products.
        optimizer: the update rule.
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
    """Return the device's seconds per sample at a usual batch and full clock."""
    work = demand(profile, REFERENCE_BATCH, precision, optimizer)
    times = step_times(work, device, calibration.theta, factors, SATURATIONS[calibration.saturation])
    return float(device_s(times, calibration.theta)) / REFERENCE_BATCH


def geometric_mean(values: Sequence[Any]) -> Any:
    """Return the geometric mean of predictions by several members, elementwise."""
    if len(values) == 1:
        return values[0]
    return np.exp(sum(np.log(value) for value in values) / len(values))
