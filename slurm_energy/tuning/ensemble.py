"""Ensemble of responses: sampled relative times and powers at candidate points, weighted by measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.objective import TIME_EXPONENTS, Objective

Array = npt.NDArray[np.float64]

_BASE_DISCREPANCY = 0.004
_DISCREPANCY_SHARE = 0.12
_CORRELATION_LENGTH = 0.12


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured response at one candidate point, relative to the measured reference.

    Attributes:
        index: index of the candidate point.
        log_time: logarithm of the time ratio.
        log_power: logarithm of the power ratio.
        time_error: standard error of `log_time` without the error of the reference.
        power_error: standard error of `log_power` without the error of the reference.
    """

    index: int
    log_time: float
    log_power: float
    time_error: float
    power_error: float


class Ensemble:
    """Samples of the response of a job over J candidate points.

    Each of the K samples is a whole response: a time ratio and a power ratio at every point. Measurements at
    some points weight the samples, and the weighted samples predict the other points. No sample is exact,
    therefore every measurement also has a discrepancy: a deviation from the samples that neighbouring points
    share.

    Attributes:
        points: candidate points, J.
        log_time: logarithm of the time ratios, [K, J].
        log_power: logarithm of the power ratios, [K, J].
        log_weights: logarithm of the prior weights, [K].
    """

    def __init__(
        self,
        points: Sequence[OperatingPoint],
        log_time: Array,
        log_power: Array,
        log_weights: Array | None = None,
    ) -> None:
        """Store the samples.

        Raises:
            ValueError: the shapes do not match.
        """
        shape = (log_time.shape[0], len(points))
        if log_time.shape != shape or log_power.shape != shape or shape[0] == 0:
            raise ValueError(
                f"samples of shape {log_time.shape} and {log_power.shape} for {len(points)} points"
            )
        self.points = tuple(points)
        self.log_time = np.ascontiguousarray(log_time)
        self.log_power = np.ascontiguousarray(log_power)
        self.log_weights = np.zeros(shape[0]) if log_weights is None else log_weights
        self._costs: dict[str, Array] = {}
        weights = _normalised(self.log_weights)
        mean_time = weights @ self.log_time
        mean_power = weights @ self.log_power
        self.time_discrepancy = _discrepancy(weights, self.log_time, mean_time)
        self.power_discrepancy = _discrepancy(weights, self.log_power, mean_power)
        place = np.stack([mean_time, mean_power])
        squares = ((place[:, :, None] - place[:, None, :]) ** 2).sum(axis=0)
        self.correlation = np.exp(-0.5 * squares / _CORRELATION_LENGTH**2)

    def cost(self, objective: str) -> Array:
        """Return the objective of every sample at every point, [K, J]."""
        if objective not in self._costs:
            exponent = TIME_EXPONENTS[objective]
            self._costs[objective] = np.exp(self.log_power + exponent * self.log_time)
        return self._costs[objective]

    def condition(
        self,
        observations: Sequence[Observation] = (),
        reference_time_error: float = 0.0,
        reference_power_error: float = 0.0,
    ) -> Posterior:
        """Return the ensemble weighted by measurements.

        Args:
            observations: at most one per point.
            reference_time_error: standard error of the logarithm of the reference's speed, which is common to
                all observations.
            reference_power_error: the same for the reference's power.
        """
        if not observations:
            nothing = np.zeros(len(self.points))
            return Posterior(self, _normalised(self.log_weights), nothing, nothing, nothing)
        index = np.array([item.index for item in observations])
        time = np.array([item.log_time for item in observations])
        power = np.array([item.log_power for item in observations])
        time_variance = np.array([item.time_error for item in observations]) ** 2
        power_variance = np.array([item.power_error for item in observations]) ** 2
        columns_time = self.log_time[:, index]
        columns_power = self.log_power[:, index]
        log_weights = (
            self.log_weights
            + _log_likelihood(
                time - columns_time, time_variance + self.time_discrepancy[index] ** 2, reference_time_error
            )
            + _log_likelihood(
                power - columns_power,
                power_variance + self.power_discrepancy[index] ** 2,
                reference_power_error,
            )
        )
        weights = _normalised(log_weights)
        time_shift, time_variance_left = self._residual(
            index,
            time - weights @ columns_time,
            time_variance + reference_time_error**2,
            self.time_discrepancy,
        )
        power_shift, _ = self._residual(
            index,
            power - weights @ columns_power,
            power_variance + reference_power_error**2,
            self.power_discrepancy,
        )
        return Posterior(self, weights, time_shift, power_shift, time_variance_left)

    def _residual(
        self, index: npt.NDArray[np.intp], residual: Array, variance: Array, discrepancy: Array
    ) -> tuple[Array, Array]:
        """Return the mean and the variance of the deviation from the weighted samples at every point."""
        prior = self.correlation * discrepancy[:, None] * discrepancy[None, :]
        measured = prior[np.ix_(index, index)] + np.diag(variance + 1e-10)
        gain = np.linalg.solve(measured, prior[index, :])
        shift = residual @ gain
        left = np.maximum(np.diag(prior) - (prior[index, :] * gain).sum(axis=0), 0.0)
        return shift, left


class Posterior:
    """Weighted samples of an ensemble with the local deviation from them.

    Attributes:
        ensemble: the samples.
        weights: weight of each sample; the sum is 1.
        time_shift: mean deviation of the logarithm of the time ratio from the samples, [J].
        power_shift: the same for the power ratio, [J].
        time_variance: variance of the deviation of the time, [J].
    """

    def __init__(
        self, ensemble: Ensemble, weights: Array, time_shift: Array, power_shift: Array, time_variance: Array
    ) -> None:
        """Store the weights and the deviations.

        Args:
            ensemble: the samples.
            weights: weight of each sample, [K].
            time_shift: mean deviation of the logarithm of the time ratio, [J].
            power_shift: mean deviation of the logarithm of the power ratio, [J].
            time_variance: variance of the deviation of the time, [J].
        """
        self.ensemble = ensemble
        self.weights = weights
        self.time_shift = time_shift
        self.power_shift = power_shift
        self.time_variance = time_variance

    def mean_cost(self, objective: Objective) -> Array:
        """Return the expected objective at every point."""
        shift = self.power_shift + TIME_EXPONENTS[objective.name] * self.time_shift
        return self.weights @ self.ensemble.cost(objective.name) * np.exp(shift)

    def mean_log_time(self) -> Array:
        """Return the expected logarithm of the time ratio at every point."""
        return self.weights @ self.ensemble.log_time + self.time_shift

    def mean_log_power(self) -> Array:
        """Return the expected logarithm of the power ratio at every point."""
        return self.weights @ self.ensemble.log_power + self.power_shift

    def log_time_error(self) -> Array:
        """Return the standard deviation of the logarithm of the time ratio at every point."""
        mean = self.weights @ self.ensemble.log_time
        variance = self.weights @ self.ensemble.log_time**2 - mean**2
        return np.sqrt(np.maximum(variance, 0.0) + self.time_variance)

    def time_exceedance(self, time_ratio: float) -> Array:
        """Return the probability that the time ratio exceeds a value, for every point."""
        # The deviation widens each sample; a logistic curve is close to the normal distribution function.
        scale = np.sqrt(self.time_variance + 1e-8) / 1.702
        distance = (self.ensemble.log_time + (self.time_shift - np.log(time_ratio))) / scale
        return np.asarray(self.weights @ (0.5 + 0.5 * np.tanh(0.5 * distance)))

    def cost_exceedance(self, objective: Objective, cost: float) -> Array:
        """Return the probability that the objective exceeds a value, for every point."""
        shift = self.power_shift + TIME_EXPONENTS[objective.name] * self.time_shift
        exceeds = self.ensemble.cost(objective.name) * np.exp(shift) > cost
        return np.asarray(self.weights @ exceeds, dtype=np.float64)

    def expected_change(self, objective: Objective, cost: float) -> tuple[Array, Array]:
        """Return the expected gain and the expected loss of the objective at every point against a cost.

        With a slowdown limit, a sample that breaks it brings no gain.
        """
        shift = self.power_shift + TIME_EXPONENTS[objective.name] * self.time_shift
        change: Array = cost - self.ensemble.cost(objective.name) * np.exp(shift)
        gain = np.maximum(change, 0.0)
        loss = self.weights @ (gain - change)
        if objective.slowdown_limit is not None:
            gain *= self.ensemble.log_time <= np.log1p(objective.slowdown_limit) - self.time_shift
        return np.asarray(self.weights @ gain), loss


def _normalised(log_weights: Array) -> Array:
    weights: Array = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def _discrepancy(weights: Array, samples: Array, mean: Array) -> Array:
    """Return the standard deviation of a job from the best sample at every point."""
    spread = np.sqrt(np.maximum(weights @ samples**2 - mean**2, 0.0))
    return _BASE_DISCREPANCY + _DISCREPANCY_SHARE * spread


def _log_likelihood(residuals: Array, variance: Array, common_error: float) -> Array:
    """Return the logarithm of the likelihood of each sample, up to a constant.

    Args:
        residuals: measured minus sampled values, [K, N].
        variance: variance of each measurement, [N].
        common_error: standard error of an offset that all measurements share.
    """
    precision = 1.0 / variance
    result: Array = residuals**2 @ precision
    if common_error > 0:
        result = result - (residuals @ precision) ** 2 / (1.0 / common_error**2 + precision.sum())
    return -0.5 * result
