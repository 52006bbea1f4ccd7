"""Predictions of a workload's training steps on one kind of device.

Many configurations are predicted at once.

A prediction includes time, watts and their ranges. A workload with its own fitted factors is predicted by the
calibrated model, multiplied by the measured deviations from the model (residuals). Any other workload is
predicted from other kinds of device (`transfer`) if the calibration contains the required data, otherwise by
the mean over the factors of all measured workloads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.selection import UNSEEN_POWER_DEVIATION
from slurm_energy.oracle.training.demand import StepDemand, demand
from slurm_energy.oracle.training.ensemble import geometric_mean, members
from slurm_energy.oracle.training.parameters import Calibration, Spread
from slurm_energy.oracle.training.power import clock_under, step_watts
from slurm_energy.oracle.training.saturation import SATURATIONS
from slurm_energy.oracle.training.timing import DeviceParameters, StepTimes, step_s, step_times
from slurm_energy.oracle.transfer.gaussian_process import Posterior
from slurm_energy.oracle.transfer.latent_model import DEFAULTS, NEUTRAL, LatentModel
from slurm_energy.oracle.transfer.lookup_table import LookupTable, cap_shares, tabulate
from slurm_energy.oracle.workload import WorkloadProfile, find_optimizer

Array = NDArray[np.float64]
_MAX_TABLES: Final = 256
Deviation = tuple[float, float]
"""Deviations of the latent quantities demand and supply from the expected values, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Configurations:
    """Settings of n training steps, as arrays of shape (n,).

    All steps belong to one workload, on one kind of device, with one precision. They are the rows of
    `TrainingAlternatives` with this workload, kind and precision.

    Attributes:
        batch: samples per device and pass.
        gpus: number of devices that train together.
        accumulation: passes per update of the weights.
        cap_watts: power limits per device; infinity means no limit.
        clock: clock limits as shares of the maximum clock.
    """

    batch: Array
    gpus: Array
    accumulation: Array
    cap_watts: Array
    clock: Array


@dataclass(frozen=True, slots=True)
class StepPredictions:
    """Predictions of n training steps, as arrays of shape (n,) unless stated otherwise.

    Attributes:
        step_s: seconds per update.
        power_watts: mean watts of one device.
        clock: clock during work as a share of the maximum clock.
        spread: uncertainty of the predictions, shape (n, 4): quantiles of the ratio of measured to predicted
            values. The columns are the 5 and 95 % quantiles of time, then those of power, as in `Spread`.
    """

    step_s: Array
    power_watts: Array
    clock: Array
    spread: Array


class StepPredictor:
    """Predictor of training steps that uses the calibration of the kind of device.

    Args:
        calibration_of: function from the name of a kind of device to its calibration.
        looping: whether the framework updates one tensor after the other (PyTorch before 2.0).
    """

    def __init__(self, calibration_of: Callable[[str], Calibration], *, looping: bool = False) -> None:
        self.calibration_of, self._looping = calibration_of, looping
        self._posteriors: dict[str, tuple[Calibration, Posterior | None]] = {}
        self._tables: dict[
            tuple[str, str, str], tuple[Calibration, WorkloadProfile, Hardware, LookupTable]
        ] = {}

    def is_transferred(self, profile: WorkloadProfile, kind: Hardware) -> bool:
        """Return whether a workload is predicted from measurements on other kinds of device (`transfer`)."""
        calibration = self.calibration_of(kind.name)
        return calibration.evidence is not None and profile.name not in calibration.workloads

    def steps(
        self,
        profile: WorkloadProfile,
        kind: Hardware,
        precision: str,
        configurations: Configurations,
        deviation: Deviation = (0.0, 0.0),
    ) -> StepPredictions:
        """Return the predicted training steps of one workload on one kind of device.

        Args:
            profile: the workload.
            kind: the kind of device.
            precision: precision of matrix products.
            configurations: configurations to predict.
            deviation: assumed errors of two estimated properties of the device, in standard deviations:
                first of `demand`, then of `supply` (see `oracle.transfer.prior.LATENTS`).
        """
        work = demand(
            profile, configurations.batch, precision, find_optimizer(profile.optimizer), looping=self._looping
        )
        if self.is_transferred(profile, kind):
            return self._transferred(profile, kind, precision, work, configurations, deviation)
        return self._calibrated(profile, kind, precision, work, configurations, deviation[0])

    def _calibrated(
        self,
        profile: WorkloadProfile,
        kind: Hardware,
        precision: str,
        work: StepDemand,
        configurations: Configurations,
        deviation: float,
    ) -> StepPredictions:
        calibration, optimizer = self.calibration_of(kind.name), find_optimizer(profile.optimizer)
        theta, function = calibration.theta, SATURATIONS[calibration.saturation]
        device, tdp_watts = device_of(kind, precision), kind.tdp_watts
        has_own_factors = profile.name in calibration.workloads
        power_factor = 1.0 if has_own_factors else float(np.exp(deviation * UNSEEN_POWER_DEVIATION))
        cap_watts = configurations.cap_watts / power_factor
        member_steps = []
        for scalars in members(calibration, profile, device, precision, optimizer):
            times = step_times(
                work, device, theta, scalars, function, configurations.gpus, configurations.accumulation
            )
            clock = clock_under(times, theta, scalars, tdp_watts, cap_watts, configurations.clock)
            watts = step_watts(times, theta, scalars, tdp_watts, clock)
            member_steps.append((step_s(times, theta, clock), watts, clock))
        step, power, clock = (geometric_mean(values) for values in zip(*member_steps, strict=True))
        residuals = calibration.residuals.get((profile.name, precision))
        if residuals is not None:
            on_time, on_power = residuals.at(configurations.batch, cap_watts)
            step, power = step * on_time, np.minimum(power * on_power, tdp_watts)
        is_measured = has_own_factors & _is_measured(calibration, profile, precision, configurations)
        quantiles = np.where(
            is_measured[:, None],
            _quantiles(calibration.measured_spread),
            _quantiles(calibration.unmeasured_spread),
        )
        return StepPredictions(step, power * power_factor, clock, quantiles)

    def _transferred(
        self,
        profile: WorkloadProfile,
        kind: Hardware,
        precision: str,
        work: StepDemand,
        configurations: Configurations,
        deviation: Deviation,
    ) -> StepPredictions:
        device, function = device_of(kind, precision), SATURATIONS["sigmoid"]
        table = self._table(profile, kind, precision)
        times = step_times(
            work, device, DEFAULTS, NEUTRAL, function, configurations.gpus, configurations.accumulation
        )
        response = LatentModel(times, kind.tdp_watts, configurations.cap_watts, configurations.clock)
        seconds, watts, clock = response.at(*table.latents_at(configurations.batch, deviation))
        shares = cap_shares(configurations.cap_watts, kind.tdp_watts)
        on_time, on_power = np.exp(table.offsets_at(configurations.batch, shares))
        wide_time, wide_power = np.exp(table.widths_at(configurations.batch, shares))
        watts = np.minimum(watts * on_power, kind.tdp_watts)
        quantiles = np.stack((1.0 / wide_time, wide_time, 1.0 / wide_power, wide_power), axis=1)
        calibration = self.calibration_of(kind.name)
        if calibration.evidence_count(profile.name):
            is_measured = _is_measured(calibration, profile, precision, configurations)
            quantiles = np.where(is_measured[:, None], quantiles, _widened(quantiles, calibration))
        return StepPredictions(np.asarray(seconds * on_time), watts, clock, quantiles)

    def _table(self, profile: WorkloadProfile, kind: Hardware, precision: str) -> LookupTable:
        """Return the cached lookup table of a workload on a kind of device.

        The table is computed at the first call.
        """
        key, calibration = (kind.name, profile.name, precision), self.calibration_of(kind.name)
        cached = self._tables.get(key)
        if cached is not None and cached[0] is calibration and cached[1] is profile and cached[2] is kind:
            return cached[3]
        if len(self._tables) >= _MAX_TABLES:
            self._tables.clear()
        assert calibration.evidence is not None

        def times(batch: Array) -> StepTimes:
            optimizer = find_optimizer(profile.optimizer)
            work = demand(profile, batch, precision, optimizer, looping=self._looping)
            function = SATURATIONS["sigmoid"]
            return step_times(work, device_of(kind, precision), DEFAULTS, NEUTRAL, function)

        table = tabulate(
            profile.name, kind.tdp_watts, times, calibration.evidence, self._posterior(kind.name, calibration)
        )
        self._tables[key] = calibration, profile, kind, table
        return table

    def _posterior(self, name: str, calibration: Calibration) -> Posterior | None:
        cached = self._posteriors.get(name)
        if cached is None or cached[0] is not calibration:
            assert calibration.evidence is not None
            cached = self._posteriors[name] = (calibration, calibration.evidence.posterior())
        return cached[1]


def _is_measured(
    calibration: Calibration, profile: WorkloadProfile, precision: str, configurations: Configurations
) -> NDArray[np.bool_]:
    """Return for each configuration whether measurements cover its precision and number of devices.

    The result has shape (n,). Batch size and power limit do not matter.
    """
    return np.asarray(configurations.gpus <= calibration.max_measured_gpus(profile.name, precision))


def _quantiles(spread: Spread) -> tuple[float, float, float, float]:
    """Return the quantiles of a range of errors in the order of `StepPredictions.spread`."""
    return spread.time_low, spread.time_high, spread.power_low, spread.power_high


def _widened(quantiles: Array, calibration: Calibration) -> Array:
    """Return quantiles of n errors, shape (n, 4), that include the range of unmeasured cases."""
    wide = np.array(_quantiles(calibration.unmeasured_spread))
    return np.asarray(np.where(quantiles < 1.0, np.minimum(quantiles, wide), np.maximum(quantiles, wide)))


def device_of(kind: Hardware, precision: str) -> DeviceParameters:
    """Return the peak rates of a device for training in the number format `precision`.

    The number format determines the rate of matrix products.

    Raises:
        UsageError: the device does not support this precision.
    """
    return DeviceParameters(
        matrix_flops_per_s=kind.matrix_flops_per_s(precision),
        alu_flops_per_s=kind.alu_flops_per_s,
        memory_bytes_per_s=kind.memory_bytes_per_s,
        l2_bytes=kind.l2_bytes,
        link_bytes_per_s=kind.link_bytes_per_s,
        tdp_watts=kind.tdp_watts,
    )


def support_of(calibration: Calibration, profile: WorkloadProfile, precision: str, batch: Any) -> Array:
    """Return how close each batch size is to a measured batch size, from 0 (far) to 1 (measured).

    All results are 0 if the workload was not measured in this precision. See `Residuals.support`.
    """
    residuals = calibration.residuals.get((profile.name, precision))
    count = np.shape(batch)
    return np.zeros(count) if residuals is None else residuals.support(batch)
