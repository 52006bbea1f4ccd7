"""Predictions of measured training steps by a calibration, and their errors. Nothing is fitted here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_energy.oracle.calibration.fit_problem import Array, Problem, mape
from slurm_energy.oracle.calibration.measurements import Measurement, column
from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.step_prediction import (
    Configurations,
    Deviation,
    StepPredictions,
    StepPredictor,
    device_of,
)
from slurm_energy.oracle.training.ensemble import geometric_mean, members
from slurm_energy.oracle.training.parameters import UNMEASURED, Calibration, Spread
from slurm_energy.oracle.training.timing import DeviceParameters
from slurm_energy.oracle.workload import Optimizer, WorkloadProfile, find_optimizer, find_profile


def predict_rows(
    hardware: Hardware, rows: Sequence[Measurement], calibration: Calibration
) -> tuple[Array, Array]:
    """Predict the measured training steps of one device, to compare the values with measurements.

    Return seconds per step and watts, as two arrays of shape (n,). The values equal the predictions of
    `step_prediction.StepPredictor`.

    Args:
        hardware: the kind of device on which the measurements were taken.
        rows: the n measured configurations. Their measured times and watts are not used.
        calibration: fitted parameters of this kind of device.
    """
    seconds, watts = np.empty(len(rows)), np.empty(len(rows))
    for kind in {(row.model, row.precision) for row in rows}:
        indices = [index for index, row in enumerate(rows) if (row.model, row.precision) == kind]
        own = [rows[index] for index in indices]
        if calibration.evidence is not None and kind[0] not in calibration.workloads:
            steps = transferred(hardware, own, calibration)
            seconds[indices], watts[indices] = steps.step_s, steps.power_watts
            continue
        member_predictions = []
        for scalars in members(calibration, *prediction_inputs(hardware, own[0])):
            problem = Problem(hardware, own, calibration.theta, {kind[0]: scalars}, calibration.saturation)
            member_predictions.append(problem.predict([], np.zeros((1, 0)))[:2])
        seconds[indices] = geometric_mean([pair[0][0] for pair in member_predictions])
        watts[indices] = geometric_mean([pair[1][0] for pair in member_predictions])
        residuals = calibration.residuals.get(kind)
        if residuals is not None:
            on_time, on_power = residuals.at(column(own, "batch"), column(own, "cap_watts"))
            seconds[indices] *= on_time
            watts[indices] = np.minimum(watts[indices] * on_power, hardware.tdp_watts)
    return seconds, watts


def transferred(
    hardware: Hardware,
    rows: Sequence[Measurement],
    calibration: Calibration,
    deviation: Deviation = (0.0, 0.0),
) -> StepPredictions:
    """Predict measured configurations from measurements of other workloads and other kinds of device.

    Args:
        hardware: the kind of device.
        rows: measured configurations, at least one, all of the same workload and precision.
        calibration: calibration of the kind of device. Its `evidence` must not be None.
        deviation: assumed errors of two latent quantities, demand and supply
            (`oracle.transfer.prior.LATENTS`), in standard deviations. A latent quantity is estimated, not
            measured. (0, 0) assumes no error.
    """
    predictor = StepPredictor(lambda name: calibration, looping=rows[0].looping)
    configurations = Configurations(
        column(rows, "batch"),
        column(rows, "gpus"),
        np.ones(len(rows)),
        column(rows, "cap_watts"),
        np.ones(len(rows)),
    )
    return predictor.steps(
        find_profile(rows[0].model), hardware, rows[0].precision, configurations, deviation
    )


def host_wait_shares(hardware: Hardware, rows: Sequence[Measurement], calibration: Calibration) -> Array:
    """Return the fraction of each training step in which the device waits for its host, shape (n,).

    The fractions are computed for steps without a power limit.
    """
    return Problem(
        hardware, rows, calibration.theta, dict(calibration.workloads), calibration.saturation
    ).host_wait_shares()


def errors(rows: Sequence[Measurement], seconds: Array, watts: Array) -> tuple[float, float]:
    """Return the mean absolute relative errors of predictions (0.1 means 10 %).

    The first value is the error of the seconds per step, the second the error of the watts.
    """
    return float(mape(seconds, column(rows, "step_s"))), float(mape(watts, column(rows, "power_watts")))


def spread(rows: Sequence[Measurement], seconds: Array, watts: Array) -> Spread:
    """Return the range of measured values divided by predicted values, for time and for power.

    Each range lies between the 5 % and the 95 % quantile of these ratios, and is widened to include 1. If
    no power was measured, the range of power is the default for kinds of device without measurements.

    Args:
        rows: n measurements.
        seconds: predicted seconds per step, shape (n,).
        watts: predicted mean watts of one device, shape (n,).
    """
    time = _quantiles(column(rows, "step_s") / seconds)
    ratio = column(rows, "power_watts") / watts
    wide = UNMEASURED.power_low, UNMEASURED.power_high
    return Spread(*time, *(_quantiles(ratio) if np.isfinite(ratio).any() else wide))


def _quantiles(ratio: Array) -> tuple[float, float]:
    low, high = np.nanquantile(ratio, (0.05, 0.95))
    return min(1.0, float(low)), max(1.0, float(high))


def prediction_inputs(
    hardware: Hardware, row: Measurement
) -> tuple[WorkloadProfile, DeviceParameters, str, Optimizer]:
    """Return the inputs from which a measured configuration is predicted, except the calibration.

    Args:
        hardware: the kind of device.
        row: the measured configuration.

    Returns:
        Workload profile, peak rates of the device in the row's precision, the precision's name, and the
        optimizer.
    """
    device = device_of(hardware, row.precision)
    return find_profile(row.model), device, row.precision, find_optimizer(row.optimizer)
