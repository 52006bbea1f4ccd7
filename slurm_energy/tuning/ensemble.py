"""Sampled responses of a job to hardware settings, from which untested settings are predicted.

A candidate point is a combination of hardware settings that may be chosen for the job. A response is
the relative time and power of the job at each candidate point. The samples of responses form an
ensemble. Measurements of the job determine the weight of each sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.objective import TIME_EXPONENTS, Objective

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

_BASE_DISCREPANCY = 0.004
_DISCREPANCY_SHARE = 0.12
_CORRELATION_LENGTH = 0.12
_MIN_TIME_ERROR = 1e-4


@dataclass(frozen=True, slots=True)
class Observation:
    """A measurement of a job at one candidate point (setting), relative to the untuned job.

    The measured time and power of the untuned job are the reference.

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
    some points weight the samples, and the weighted samples predict the other points. No sample is exact. A
    job deviates from each sample by a random function over the points, a Gaussian process in which
    neighbouring points are correlated. Every measurement also corrects this deviation.

    Attributes:
        points: the J candidate points.
        log_time: logarithm of the time ratios, shape (K, J).
        log_power: logarithm of the power ratios, shape (K, J).
        log_weights: logarithm of the samples' weights before measurements, shape (K,).
        time_discrepancy: standard deviation of a job's `log_time` from the best sample, shape (J,).
        power_discrepancy: standard deviation of a job's `log_power` from the best sample, shape (J,).
        correlation: correlation of these deviations between the points, shape (J, J).
    """

    def __init__(
        self,
        points: Sequence[OperatingPoint],
        log_time: Array | Single,
        log_power: Array | Single,
        log_weights: Array | None = None,
    ) -> None:
        """Store the samples of a job's response to tuning.

        Raises:
            ValueError: the shapes of the arrays do not match.
        """
        shape = (log_time.shape[0], len(points))
        if log_time.shape != shape or log_power.shape != shape or shape[0] == 0:
            raise ValueError(
                f"samples of shape {log_time.shape} and {log_power.shape} for {len(points)} points"
            )
        self.points = tuple(points)
        # Single precision halves the time of a decision.
        self.log_time: Single = np.ascontiguousarray(log_time, dtype=np.float32)
        self.log_power: Single = np.ascontiguousarray(log_power, dtype=np.float32)
        self.log_weights: Array = np.zeros(shape[0]) if log_weights is None else log_weights
        weights = _normalised(self.log_weights)
        mean_time, time_spread = _moments(weights, self.log_time)
        mean_power, power_spread = _moments(weights, self.log_power)
        # The untuned job has the ratio 1 exactly.
        tuned = np.array([point != UNTUNED for point in points])
        self.time_discrepancy: Array = (_BASE_DISCREPANCY + _DISCREPANCY_SHARE * time_spread) * tuned
        self.power_discrepancy: Array = (_BASE_DISCREPANCY + _DISCREPANCY_SHARE * power_spread) * tuned
        squares = (mean_time[:, None] - mean_time) ** 2 + (mean_power[:, None] - mean_power) ** 2
        self.correlation: Array = np.exp(-0.5 * squares / _CORRELATION_LENGTH**2)
        self._time_deviation = self.correlation * np.outer(self.time_discrepancy, self.time_discrepancy)
        self._power_deviation = self.correlation * np.outer(self.power_discrepancy, self.power_discrepancy)

    def condition(
        self,
        observations: Sequence[Observation] = (),
        reference_time_error: float = 0.0,
        reference_power_error: float = 0.0,
        min_weight: float = 1e-5,
    ) -> EnsemblePosterior:
        """Return a copy of the ensemble that takes measurements of the job into account.

        The ensemble consists of samples. Each sample is one possible response of the job to settings. The
        measurements give weights to the samples and correct them.

        Args:
            observations: measured responses, at most one per candidate point (combination of settings).
            reference_time_error: standard error of the logarithm of the untuned job's speed (reference). This
                error is common to all observations.
            reference_power_error: standard error of the logarithm of the untuned job's power.
            min_weight: samples whose weight is below this fraction of the largest weight are left out. With
                the default, a thousand omitted samples together weigh at most 1 %. The omission halves the
                time of a decision.
        """
        if not observations:
            weights = _normalised(self.log_weights)
            return EnsemblePosterior(
                self.points, weights, self.log_time, self.log_power, self.time_discrepancy
            )
        index = np.array([item.index for item in observations], dtype=np.intp)
        time = _Deviation(
            self._time_deviation,
            index,
            np.array([item.log_time for item in observations]) - self.log_time[:, index],
            np.array([item.time_error for item in observations]),
            reference_time_error,
        )
        power = _Deviation(
            self._power_deviation,
            index,
            np.array([item.log_power for item in observations]) - self.log_power[:, index],
            np.array([item.power_error for item in observations]),
            reference_power_error,
        )
        weights = _normalised(self.log_weights + time.log_likelihood + power.log_likelihood)
        kept = np.flatnonzero(weights >= min_weight * weights.max())
        return EnsemblePosterior(
            self.points,
            np.asarray(weights[kept] / weights[kept].sum(), dtype=np.float64),
            self.log_time[kept] + time.mean(kept),
            self.log_power[kept] + power.mean(kept),
            time.error,
        )


class EnsemblePosterior:
    """Prediction of a job's time and power at operating points, after measurements of the job.

    The prediction consists of weighted samples. Each sample is one possible response of the job.

    Attributes:
        points: the J candidate points.
        weights: weight of each of the K samples, shape (K,). The sum is 1.
        log_time: logarithm of the time ratios, shape (K, J).
        log_power: logarithm of the power ratios, shape (K, J).
        time_error: standard deviation of a job's `log_time` from each sample, shape (J,).
    """

    def __init__(
        self,
        points: Sequence[OperatingPoint],
        weights: Array,
        log_time: Single,
        log_power: Single,
        time_error: Array,
    ) -> None:
        """Store the given samples and their weights."""
        self.points = tuple(points)
        self.weights = weights.astype(np.float32)
        self.log_time = log_time
        self.log_power = log_power
        self.time_error = time_error
        self._cost: tuple[str, Array] | None = None

    def cost(self, objective: Objective) -> Array:
        """Return the cost of each possible response of the job at each operating point, shape (K, J).

        The cost is the value of the objective divided by its value for the untuned job. There are K samples
        of possible responses, and J points.
        """
        if self._cost is None or self._cost[0] != objective.name:
            exponent = np.float32(TIME_EXPONENTS[objective.name])
            self._cost = (objective.name, np.exp(self.log_power + exponent * self.log_time))
        return self._cost[1]

    def mean_cost(self, objective: Objective) -> Array:
        """Return the expected cost of a job at each of the J operating points, shape (J,).

        The objective of the job defines the cost. An operating point is a set of hardware settings.
        """
        return self._mean(self.cost(objective))

    def mean_log_time(self) -> Array:
        """Return the expected logarithm of the relative run time at each operating point, shape (J,).

        An operating point is a set of hardware settings. The run time is relative to the untuned job.
        """
        return self._mean(self.log_time)

    def mean_log_power(self) -> Array:
        """Return the expected logarithm of the power ratio at every operating point, shape (J,).

        An operating point is a set of hardware settings. The power ratio is the power divided by the power of
        the untuned job.
        """
        return self._mean(self.log_power)

    def log_time_error(self, index: int) -> float:
        """Return the uncertainty of the job's relative time at an operating point.

        The result is the standard deviation of the logarithm of the relative time. `index` is the index of
        the operating point among the candidates.
        """
        column = self.log_time[:, index]
        mean = float(self.weights @ column)
        return float(np.sqrt(self.weights @ (column - mean) ** 2 + self.time_error[index] ** 2))

    def time_exceedance(self, time_ratio: float) -> Array:
        """Return for each operating point the probability that the time ratio exceeds a value.

        The result has the shape (J,).
        """
        # Each sample is widened by a job's deviation, here uniform with the same standard deviation.
        half = np.maximum(np.sqrt(3.0) * self.time_error, _MIN_TIME_ERROR).astype(np.float32)
        share = (self.log_time - np.float32(np.log(time_ratio))) / (2 * half) + np.float32(0.5)
        return self._mean(np.clip(share, 0.0, 1.0, out=share))

    def cost_exceedance(self, objective: Objective, cost: float) -> Array:
        """Return for every point the probability that the cost exceeds a value, shape (J,)."""
        return self._mean((self.cost(objective) > cost).astype(np.float32))

    def expected_change(self, objective: Objective, cost: float) -> tuple[Array, Array]:
        """Return the expected gain and loss at every operating point, compared with a given cost.

        The prediction consists of samples. Each sample is one possible response of the job to settings and
        yields a cost. The gain of a sample is `cost` minus the cost of the sample, or 0 if this difference is
        negative. The loss is the cost of the sample minus `cost`, or 0 if this difference is negative. The
        gain of a sample that exceeds the slowdown limit is 0. The results are means over the samples, shape
        (J,) each.
        """
        change = np.float32(cost) - self.cost(objective)
        gain = np.maximum(change, 0.0)
        loss = self._mean(gain) - self._mean(change)
        if objective.slowdown_limit is not None:
            gain *= self.log_time <= np.float32(np.log1p(objective.slowdown_limit))
        return self._mean(gain), loss

    def _mean(self, samples: Array | Single) -> Array:
        return np.asarray(self.weights @ samples, dtype=np.float64)


class _Deviation:
    """How far a job deviates from the samples of the ensemble of responses.

    The deviation is estimated from the residuals of measurements.

    Attributes:
        log_likelihood: logarithm of the likelihood of each sample up to a constant, shape (K,).
        error: standard deviation of the estimated deviation at each candidate point, shape (J,).
    """

    def __init__(
        self,
        covariance: Array,
        index: npt.NDArray[np.intp],
        residuals: Array,
        errors: Array,
        common_error: float,
    ) -> None:
        measured = covariance[np.ix_(index, index)] + np.diag(errors**2 + 1e-10) + common_error**2
        inverse = np.linalg.inv(measured).astype(np.float32)
        residuals = residuals.astype(np.float32)
        self._scaled = residuals @ inverse
        self.log_likelihood: Array = -0.5 * (self._scaled * residuals).sum(axis=1)
        cross = self._cross = covariance[index, :].astype(np.float32)
        left = np.diag(covariance) - (cross * (inverse @ cross)).sum(axis=0)
        self.error: Array = np.sqrt(np.maximum(left, 0.0))

    def mean(self, samples: npt.NDArray[np.intp]) -> Single:
        """Return the expected deviation of the job from each given sample of the ensemble.

        A sample is one assumed response of time or power to the operating points (sets of hardware settings).
        The result has one row per sample and one column per operating point, shape (len(samples), J).
        """
        return np.asarray(self._scaled[samples] @ self._cross)


def _normalised(log_weights: Array) -> Array:
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def _moments(weights: Array, samples: Single) -> tuple[Array, Array]:
    """Return the weighted mean and standard deviation of each of the J columns of `samples`."""
    single = weights.astype(np.float32)
    mean = single @ samples
    deviation = samples - mean
    deviation *= deviation
    return mean.astype(np.float64), np.sqrt(np.maximum(single @ deviation, 0.0), dtype=np.float64)
