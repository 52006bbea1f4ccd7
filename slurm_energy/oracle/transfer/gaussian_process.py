"""Gaussian process that estimates properties of a device that cannot be measured directly.

Such a property is called a latent quantity. The module computes covariances and the posterior. All
functions are pure.

Near the current values of the latent quantities, the logarithms of time and power are linear in these
quantities (extended Kalman filter). Therefore the logarithms of time and power of a step and all
latent quantities have a joint normal distribution.

Two further Gaussian processes describe deviations from this linear model. The first grows in
proportion to the slowdown of the step. The second has the same variance at every slowdown. The
covariance of each process decreases with the distance in batch size and power limit (Matern, 3/2).
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, Eq. 2.25 to 2.27 and 4.17.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slurm_energy.oracle.transfer.prior import (
    BATCH_RANGE,
    CAP_RANGE,
    LATENTS,
    MEASURED_ELSEWHERE,
    NEVER_MEASURED,
    POWER_NOISE,
    POWER_ROUGHNESS,
    POWER_SLOPE,
    TIME_NOISE,
    TIME_ROUGHNESS,
    TIME_SLOPE,
    Array,
    Deviations,
)
from slurm_energy.oracle.transfer.ranges import NORMAL_SCORES, SCALE_WEIGHT, half_width

NOISES = (TIME_NOISE, POWER_NOISE)


@dataclass(frozen=True, slots=True)
class StepPositions:
    """Where n training steps lie in the input space of the Gaussian process.

    Attributes:
        workload: profile names, shape (n,).
        measured_elsewhere: whether the workload was measured on other kinds of device.
        batch: logarithm to base 2 of the samples per device and step.
        cap: logarithm of the power limit over the design power.
    """

    workload: Array
    measured_elsewhere: Array
    batch: Array
    cap: Array

    def __len__(self) -> int:
        return len(self.batch)


@dataclass(frozen=True, slots=True)
class Linearised:
    """Linear approximation of the model of n training steps.

    The approximation holds near the current latent quantities (estimated properties of the GPU).

    Attributes:
        positions: positions of the steps.
        slopes: for each latent quantity, the derivatives of the logarithm of time and of the logarithm of
            power, shape (n,) each.
        slowdown: logarithm of the maximum clock divided by the current clock.
    """

    positions: StepPositions
    slopes: Mapping[str, tuple[Array, Array]]
    slowdown: Array


def latent_covariance(first: StepPositions, second: StepPositions) -> dict[str, Array]:
    """Return the prior covariances of the latent quantities between two sets of training steps.

    A latent quantity is a property of a device that cannot be measured directly.

    Args:
        first: n training steps.
        second: m training steps.

    Returns:
        An array of shape (n, m) for each latent quantity in `LATENTS`.
    """
    same = first.workload[:, None] == second.workload[None]
    near = _matern(first.batch, second.batch, BATCH_RANGE)
    covariances = {}
    for name in LATENTS:
        of_known, of_others = MEASURED_ELSEWHERE[name], NEVER_MEASURED[name]
        own = np.where(first.measured_elsewhere, of_known.workload, of_others.workload)[:, None] ** 2
        covariances[name] = of_known.device**2 + same * (own + of_known.batch**2 * near)
    return covariances


def covariance(first: Linearised, second: Linearised) -> Array:
    """Return the assumed covariance of the logarithms of time and power of training steps.

    It is the covariance before any measurement (prior), between n steps and m other steps, without the noise
    of measurements. The shape is (2 n, 2 m). Rows and columns contain first all times, then all powers.
    """
    latents = latent_covariance(first.positions, second.positions)
    same = first.positions.workload[:, None] == second.positions.workload[None]
    along = _matern(first.positions.cap, second.positions.cap, CAP_RANGE)
    near = same * _matern(first.positions.batch, second.positions.batch, BATCH_RANGE) * along
    slowed = np.multiply.outer(first.slowdown, second.slowdown)
    blocks = [[_latent_block(latents, first, second, row, column) for column in (0, 1)] for row in (0, 1)]
    for quantity, slope, rough in ((0, TIME_SLOPE, TIME_ROUGHNESS), (1, POWER_SLOPE, POWER_ROUGHNESS)):
        blocks[quantity][quantity] += _slope_covariance(slope, same) * slowed + rough**2 * near
    return np.block(blocks)


def latent_observation_covariance(latents: Array, second: Linearised, name: str) -> Array:
    """Return the covariance between a latent quantity and observed training steps, shape (n, 2 m).

    A latent quantity is estimated, not measured. The covariance is between one latent quantity at n
    positions and m observed steps.

    Args:
        latents: covariance of this latent quantity between the positions, shape (n, m).
        second: the observed steps. The columns contain first their times, then their powers.
        name: latent quantity, one of `LATENTS`.
    """
    return np.hstack([latents * slope[None] for slope in second.slopes[name]])


class Posterior:
    """Prediction of the time and power of steps from observed steps, by a Gaussian process.

    The process is conditioned on the observed steps.

    Args:
        at: the observed steps, linearised at the most likely latent quantities.
        residuals: logarithms of the ratios observed / expected of time and power, shape (2, n); NaN means
            not observed.
        scores: quantiles (`ranges.SCORE_LEVELS`) of the scores of time and of power in predictions from
            other kinds of device. A score is an error divided by the predicted standard deviation.
    """

    def __init__(
        self,
        at: Linearised,
        residuals: Array,
        scores: tuple[Sequence[float], Sequence[float]] = (NORMAL_SCORES, NORMAL_SCORES),
    ) -> None:
        self.at, self.observed = at, np.isfinite(residuals.ravel())
        values = residuals.ravel()[self.observed]
        noise = np.repeat(np.square(NOISES), len(at.positions))[self.observed]
        full = covariance(at, at)[np.ix_(self.observed, self.observed)] + np.diag(noise)
        self._inverse_root = np.linalg.inv(np.linalg.cholesky(full))
        whitened = self._inverse_root @ values
        self.weights = self._inverse_root.T @ whitened
        power = np.flatnonzero(self.observed) >= len(at.positions)
        everything = np.ones(len(values), dtype=bool)
        # Demand, host and clock also affect time, so scattered power widens the range of time. The offset of
        # time affects time only, so scattered time does not widen the range of power.
        time_scatter = max(_scatter(full, values, everything), _scatter(full, values, ~power))
        self._scatters = [time_scatter, _scatter(full, values, power if power.any() else everything)]
        self._counts = [int(own.sum()) or len(values) for own in (~power, power)]
        self._own_scores = [_left_out_scores(full, values, own) for own in (~power, power)]
        self._scores = scores

    @cached_property
    def quantiles(self) -> Array:
        """Half widths of the uncertainty ranges of the predicted time and of the predicted power.

        The result has the shape (2, 1). The unit is the standard deviation of the prediction. The widths
        depend on the number of observations of the quantity (time or power). If the quantity was never
        observed, the observations of both quantities count.
        """
        columns = zip(self._scores, self._own_scores, self._counts, self._scatters, strict=True)
        return np.array([[half_width(*column)] for column in columns])

    def latent_mean(self, latents: Array, name: str) -> Array:
        """Return how much the observations change the expected value of a latent quantity, shape (n,).

        A latent quantity is estimated, not measured. The result is the posterior mean minus the prior mean
        at n positions.

        Args:
            latents: covariance of the quantity between these positions and the m observed steps, shape (n,
                m).
            name: latent quantity, one of `LATENTS`.
        """
        mean: Array = latent_observation_covariance(latents, self.at, name)[:, self.observed] @ self.weights
        return mean

    def latent_root(self, latents: Array, name: str) -> Array:
        """Return a matrix R that states how the observations reduce the uncertainty of a latent quantity.

        A latent quantity is estimated, not measured. The posterior covariance of the quantity at n positions
        is its prior covariance minus R^T R.

        Args:
            latents: covariance of the quantity between n positions and the m observed steps, shape (n, m).
            name: latent quantity, one of `LATENTS`.

        Returns:
            R, of shape (number of observed values, n).
        """
        root: Array = (
            self._inverse_root @ latent_observation_covariance(latents, self.at, name)[:, self.observed].T
        )
        return root

    def predict(self, at: Linearised) -> tuple[Array, Array]:
        """Return the predicted logarithms of time and power of n steps, and the reduction of their variances.

        Both arrays have the shape (2, n). The logarithms are relative to the linearised model. The posterior
        variance is the prior variance minus the reduction.
        """
        between = covariance(at, self.at)[:, self.observed]
        explained = np.square(self._inverse_root @ between.T).sum(axis=0)
        return (between @ self.weights).reshape(2, -1), explained.reshape(2, -1)


def _scatter(full: Array, values: Array, own: NDArray[np.bool_]) -> float:
    """Return by how much observations scatter more than expected, as a ratio of at least 1.

    Args:
        full: prior covariance of all observations with noise.
        values: all observations minus their prior means.
        own: mask of the observations to use.
    """
    length = values[own] @ np.linalg.solve(full[np.ix_(own, own)], values[own]) if own.any() else 0.0
    return float(np.sqrt(max(1.0, (SCALE_WEIGHT + length) / (SCALE_WEIGHT + own.sum()))))


def _left_out_scores(full: Array, values: Array, own: NDArray[np.bool_]) -> Array:
    """Return how well each selected observation is predicted by the other selected observations.

    The mask `own` selects the observations. The score of an observation is its prediction error divided by
    the predicted standard deviation (`ranges`).

    Args:
        full: prior covariance of all observations with noise.
        values: all observations minus their prior means.
        own: mask of the observations to use.

    Source: Rasmussen and Williams, Eq. 5.12.
    """
    inverse = np.linalg.inv(full[np.ix_(own, own)])
    return np.asarray(np.abs(inverse @ values[own]) / np.sqrt(inverse.diagonal()))


def variance(at: Linearised) -> Array:
    """Return the variances that are assumed before any measurement (prior variances).

    They are the variances of the logarithms of predicted time and power. The result has the shape (2, n):
    row 0 for time, row 1 for power.
    """
    variances = np.zeros((2, len(at.positions)))
    for name in LATENTS:
        of_known, of_others = MEASURED_ELSEWHERE[name], NEVER_MEASURED[name]
        own = np.where(at.positions.measured_elsewhere, of_known.workload, of_others.workload) ** 2
        total = of_known.device**2 + own + of_known.batch**2
        variances += np.square(np.stack(at.slopes[name])) * total
    for quantity, slope, rough in ((0, TIME_SLOPE, TIME_ROUGHNESS), (1, POWER_SLOPE, POWER_ROUGHNESS)):
        variances[quantity] += (slope.device**2 + slope.workload**2) * at.slowdown**2 + rough**2
    return variances


def _latent_block(
    latents: Mapping[str, Array], first: Linearised, second: Linearised, row: int, column: int
) -> Array:
    """Return the covariance between observed steps that the latent quantities cause, shape (n, m).

    A latent quantity is an estimated property of a kind of GPU, such as its efficiency. The observed
    quantity of a step is its time or its power.

    Args:
        latents: covariance of each latent quantity between the steps, shape (n, m).
        first: the n steps.
        second: the m steps.
        row: observed quantity of the steps `first` (0: time, 1: power).
        column: observed quantity of the steps `second` (0: time, 1: power).
    """
    return np.asarray(
        sum(
            first.slopes[name][row][:, None] * values * second.slopes[name][column][None]
            for name, values in latents.items()
        )
    )


def _slope_covariance(deviations: Deviations, same: Array) -> Array:
    return np.asarray(deviations.device**2 + deviations.workload**2 * same)


def _matern(positions: Array, others: Array, length_scale: float) -> Array:
    scaled = np.sqrt(3.0) / length_scale * np.abs(np.subtract.outer(positions, others))
    return np.asarray((1.0 + scaled) * np.exp(-scaled))
