"""Evidence: what is known about the training of models on a kind of device with few measurements.

The time and power of training steps are predicted from it. The evidence consists of expectations from
other kinds of device, and of the measurements on this kind of device. The module combines both by a
linearised model, and holds the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_energy.oracle.calibration.fit_problem import demands, devices
from slurm_energy.oracle.calibration.measurements import Measurement, column
from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.training.saturation import SATURATIONS
from slurm_energy.oracle.training.timing import step_times
from slurm_energy.oracle.transfer.gaussian_process import (
    Linearised,
    Posterior,
    StepPositions,
    latent_covariance,
)
from slurm_energy.oracle.transfer.latent_model import DEFAULTS, NEUTRAL, LatentModel
from slurm_energy.oracle.transfer.prior import LATENTS, LIMITS, MEASURED_ELSEWHERE, Array, Transfer

MAX_ROWS: Final = 1000
"""Maximum number of measurements used: time grows with the third power, memory with the second."""
NONLINEAR_LATENTS: Final = LATENTS[1:]
"""Latent quantities on which the logarithms of time and power do not depend linearly."""
OTHER_WORKLOAD_WEIGHT: Final = MEASURED_ELSEWHERE["demand"].device ** 2 / sum(
    deviation**2 for deviation in MEASURED_ELSEWHERE["demand"]
)
"""Weight of a measurement of another workload, equal to the correlation of the power demands of two
workloads.
"""
_MAX_ITERATIONS: Final = 24
_MAX_MOVES: Final = {"demand": 0.2, "supply": 0.7, "idle": 0.3}
"""Maximum change of a latent quantity in one iteration."""
_CONVERGED: Final = 1e-3
COLUMNS: Final = (
    *("batch", "cap_share", "slowdown", "time_residual", "power_residual"),
    *("time_by_demand", "time_by_supply", "time_by_idle"),
    *("power_by_demand", "power_by_supply", "power_by_idle"),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Data from which training jobs on a kind of device with few or no measurements are predicted.

    Attributes:
        prior: information that measurements on other kinds of device contribute.
        models: name of the workload's profile, for each measurement on this kind.
        columns: by name in `COLUMNS`, an array with one value per measurement. The model is replaced by a
            linear approximation at each measurement, and the columns include its slopes. Therefore
            predictions need no profiles of the measured workloads.
    """

    prior: Transfer
    models: tuple[str, ...] = ()
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def count(self, workload: str) -> int:
        """Return the number of measurements of the workload with the profile name `workload`."""
        return self.models.count(workload)

    def effective_count(self, workload: str) -> float:
        """Return the effective number of measurements for the prediction of one workload.

        The workload is given by its profile name. Each measurement of this workload counts as one. Each
        measurement of another workload counts as `OTHER_WORKLOAD_WEIGHT`.
        """
        own_count = self.count(workload)
        return own_count + OTHER_WORKLOAD_WEIGHT * (len(self.models) - own_count)

    def posterior(self) -> Posterior | None:
        """Return the Gaussian process for predictions, conditioned on the measurements.

        The result is None if there are no measurements.
        """
        if not self.models:
            return None
        columns = {name: np.asarray(self.columns[name], dtype=np.float64) for name in COLUMNS}
        slopes = {
            name: (columns[f"time_by_{name}"], columns[f"power_by_{name}"]) for name in NONLINEAR_LATENTS
        }
        count = len(self.models)
        slopes["time"] = (np.ones(count), np.zeros(count))
        positions = Linearised(
            steps_at(self.prior, self.models, columns["batch"], columns["cap_share"]),
            slopes,
            columns["slowdown"],
        )
        residuals = np.stack((columns["time_residual"], columns["power_residual"]))
        return Posterior(positions, residuals, self.prior.scores)


def steps_at(prior: Transfer, models: Sequence[str], batch: Array, cap_share: Array) -> StepPositions:
    """Return n training steps as inputs of the Gaussian process that predicts their time and power.

    Args:
        prior: knowledge from other kinds of device.
        models: profile names, n entries.
        batch: samples per device and step, shape (n,).
        cap_share: power limit divided by the design power, shape (n,).
    """
    measured_elsewhere = np.array([model in prior.workloads for model in models])
    return StepPositions(np.array(models), measured_elsewhere, np.log2(batch), np.log(cap_share))


def fit_evidence(hardware: Hardware, rows: Sequence[Measurement], prior: Transfer) -> Evidence:
    """Estimate the latent quantities of a kind of device from measurements and a prior.

    The latent quantities are hidden properties of the device that determine its time and power. The result
    (evidence) combines the prior with the measurements. Gauss-Newton iterations of limited and decreasing
    length approach the most likely quantities (iterated extended Kalman filter).

    Args:
        hardware: the kind of device.
        rows: measurements on this kind of device; at most `MAX_ROWS` evenly spaced rows are used.
        prior: knowledge from other kinds of device.
    """
    rows = _thin(rows)
    if not rows:
        return Evidence(prior)
    response, positions = _response(hardware, rows), _step_positions(hardware, rows, prior)
    observed = np.log(np.stack((column(rows, "step_s"), column(rows, "power_watts"))))
    means = {name: _means(prior, rows, name) for name in LATENTS}
    latents = {name: means[name].copy() for name in NONLINEAR_LATENTS}
    covariances = latent_covariance(positions, positions)
    for iteration in range(_MAX_ITERATIONS):
        posterior = Posterior(*_linearise(response, positions, observed, means, latents))
        share = 1.0 if iteration < 4 else 0.5 if iteration < 12 else 0.25
        largest = 0.0
        following = {}
        for name in NONLINEAR_LATENTS:
            best = means[name] + posterior.latent_mean(covariances[name], name)
            move = share * np.clip(best - latents[name], -_MAX_MOVES[name], _MAX_MOVES[name])
            following[name] = np.clip(latents[name] + move, *LIMITS[name])
            largest = max(largest, float(np.abs(following[name] - latents[name]).max()))
        latents = following
        if largest < _CONVERGED:
            break
    linear, residuals = _linearise(response, positions, observed, means, latents)
    return _evidence(prior, rows, hardware, linear, residuals)


def latent_values(
    hardware: Hardware, rows: Sequence[Measurement], evidence: Evidence, name: str
) -> tuple[Array, Array]:
    """Return the estimate of a latent quantity for each configuration, with its standard deviation.

    A latent quantity is a property of the workload on the device that is estimated, not measured.

    Args:
        hardware: the kind of device.
        rows: measured configurations, n entries.
        evidence: evidence on the kind of device.
        name: latent quantity, one of `LATENTS`.

    Returns:
        Most likely values and standard deviations, shape (n,) each. All latent quantities are logarithms.
    """
    positions, posterior = _step_positions(hardware, rows, evidence.prior), evidence.posterior()
    own_variance = latent_covariance(positions, positions)[name].diagonal()
    mean = _means(evidence.prior, rows, name)
    if posterior is None:
        return mean, np.sqrt(own_variance)
    between = latent_covariance(positions, posterior.at.positions)[name]
    explained = np.square(posterior.latent_root(between, name)).sum(axis=0)
    return mean + posterior.latent_mean(between, name), np.sqrt(np.maximum(0.0, own_variance - explained))


def _linearise(
    response: LatentModel,
    positions: StepPositions,
    observed: Array,
    means: Mapping[str, Array],
    latents: dict[str, Array],
) -> tuple[Linearised, Array]:
    """Linearise the model of time and power at given values of the latent quantities.

    Args:
        response: the model of the measured steps.
        positions: positions of the steps in the input space of the Gaussian process.
        observed: logarithms of the measured times and powers.
        means: prior means of the latent quantities.
        latents: values of the latent quantities at which the model is linearised.

    Returns:
        The linearised model, and the observed logarithms minus the expected ones.
    """
    seconds, watts, slowdown = response.logarithms(**latents)
    slopes = response.slopes(latents)
    expected = np.stack((seconds + means["time"], watts))
    for name in NONLINEAR_LATENTS:
        expected = expected + np.stack(slopes[name]) * (means[name] - latents[name])
    return Linearised(positions, slopes, slowdown), observed - expected


def _evidence(
    prior: Transfer, rows: Sequence[Measurement], hardware: Hardware, positions: Linearised, residuals: Array
) -> Evidence:
    columns = {
        "batch": column(rows, "batch"),
        "cap_share": _cap_shares(hardware, rows),
        "slowdown": positions.slowdown,
        "time_residual": residuals[0],
        "power_residual": residuals[1],
    }
    for name in NONLINEAR_LATENTS:
        columns[f"time_by_{name}"], columns[f"power_by_{name}"] = positions.slopes[name]
    return Evidence(
        prior,
        tuple(row.model for row in rows),
        {name: tuple(values.tolist()) for name, values in columns.items()},
    )


def _response(hardware: Hardware, rows: Sequence[Measurement]) -> LatentModel:
    function = SATURATIONS["sigmoid"]
    times = step_times(
        demands(rows), devices(hardware, rows), DEFAULTS, NEUTRAL, function, column(rows, "gpus")
    )
    return LatentModel(times, hardware.tdp_watts, column(rows, "cap_watts"))


def _step_positions(hardware: Hardware, rows: Sequence[Measurement], prior: Transfer) -> StepPositions:
    return steps_at(prior, [row.model for row in rows], column(rows, "batch"), _cap_shares(hardware, rows))


def _cap_shares(hardware: Hardware, rows: Sequence[Measurement]) -> Array:
    return np.minimum(column(rows, "cap_watts"), hardware.tdp_watts) / hardware.tdp_watts


def _means(prior: Transfer, rows: Sequence[Measurement], name: str) -> Array:
    means = [prior.mean(name, row.model, np.array([row.batch]))[0] for row in rows]
    return np.array(means)


def _thin(rows: Sequence[Measurement]) -> Sequence[Measurement]:
    if len(rows) <= MAX_ROWS:
        return rows
    return [rows[index] for index in np.linspace(0, len(rows) - 1, MAX_ROWS).astype(int)]
