"""Prediction of a recurring job's time or power from a few measurements.

The time and power are described by log ratios. A log ratio is the logarithm of the ratio to the untuned job.
The distribution of the log ratios is conditioned on the measurements. Each measurement has an unknown scale:
the time or power of the untuned job in the unit of the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.tuning.program_measurement import MIN_ERROR

Floats = NDArray[np.float64]

_SCALE_VARIANCE: Final = 100.0  # an unknown scale: a factor of e^10 to either side


@dataclass(frozen=True, slots=True)
class LogResponse:
    """Joint distribution of the logarithms of a job's time, or of its power, at J operating points.

    The distribution combines K hypotheses about the job. The logarithms are of the ratio to the untuned job
    (log ratios). A hypothesis states one expected log ratio for each operating point. A real job deviates
    from the expected log ratios. The scale is the time or power of the untuned job. It is unknown, and has
    the unit of the latest measurements.

    Attributes:
        means: expected log ratios at the points under each hypothesis, shape (K, J).
        covariance: covariance of the deviations from the hypotheses, shape (J, J).
        scale_means: mean of the logarithm of the scale under each hypothesis, shape (K,).
        scale_covariance: covariance of the logarithm of the scale with the log ratios at the points, shape
            (J,).
        scale_variance: variance of the logarithm of the scale.
    """

    means: Floats
    covariance: Floats
    scale_means: Floats
    scale_covariance: Floats
    scale_variance: float

    @property
    def variances(self) -> Floats:
        """Variance of the logarithm of the ratio at each of the J operating points, shape (J,).

        The ratio is the time, or the power, of the job divided by that of the untuned job.
        """
        return np.asarray(np.maximum(np.diag(self.covariance), 0.0))

    def some(self, hypotheses: NDArray[np.int64]) -> LogResponse:
        """Return the distribution for a subset of its hypotheses.

        A hypothesis is one possible set of log ratios at all operating points.

        Args:
            hypotheses: indices of the hypotheses to keep.
        """
        rest = (self.covariance, self.scale_means[hypotheses], self.scale_covariance, self.scale_variance)
        return LogResponse(self.means[hypotheses], *rest)


def conditioned(
    means: Floats,
    covariance: Floats,
    at: NDArray[np.int64],
    values: Sequence[float],
    errors: Sequence[float],
    scales: Sequence[str | None],
) -> tuple[LogResponse, Floats]:
    """Combine hypotheses about a job's response with measured values of time or power.

    All values are logarithms of ratios (log ratios) at operating points. The result is the distribution at
    all points under the condition of the measured values.

    Some measured values have an unknown common scale. Each unknown scale is one more random variable. A
    measurement observes the sum of a log ratio and the logarithm of the measurement's scale.

    Args:
        means: log ratios of the hypotheses, shape (K, J).
        covariance: covariance of the deviations from the hypotheses, shape (J, J).
        at: index of the point of each value, shape (n,).
        values: logarithms of the n measured values.
        errors: relative standard errors of the n values.
        scales: names of the scales of the n values; None for ratios to the untuned job.

    Returns:
        Conditional distribution, and log likelihoods of the hypotheses, shape (K,).
    """
    points = means.shape[1]
    names = list(dict.fromkeys(name for name in reversed(scales) if name is not None))
    unknown = max(1, len(names))
    joint = _SCALE_VARIANCE * np.eye(points + unknown)
    joint[:points, :points] = covariance
    full = np.hstack([means, np.zeros((len(means), unknown))])
    likelihood = np.zeros(len(means))
    if values:
        observed = np.zeros((len(values), points + unknown))
        observed[np.arange(len(values)), at] = 1.0
        for row, name in enumerate(scales):
            if name is not None:
                observed[row, points + names.index(name)] = 1.0
        link = joint @ observed.T
        noise = np.diag(np.maximum(np.array(errors), MIN_ERROR) ** 2)
        inverse = np.linalg.inv(observed @ link + noise)
        residuals = np.log(np.array(values)) - full @ observed.T
        solved = residuals @ inverse
        likelihood = -0.5 * np.einsum("kn,kn->k", solved, residuals)
        full, joint = full + solved @ link.T, joint - link @ inverse @ link.T
    scale = joint[points]
    response = LogResponse(
        full[:, :points], joint[:points, :points], full[:, points], scale[:points], float(scale[points])
    )
    return response, likelihood


def exceedance(weights: Floats, means: Floats, variances: Floats, log_ratio: float) -> Floats:
    """Return the probability that a ratio exceeds exp(`log_ratio`) at each of J operating points.

    The ratio is, for example, a time ratio. Its logarithm is normally distributed under each of K
    hypotheses. The result has the shape (..., J).

    Args:
        weights: probability of each hypothesis, shape (..., K).
        means: means of the logarithms, shape (..., K, J).
        variances: variances of the logarithms, shape (J,).
        log_ratio: logarithm of the ratio to exceed.
    """
    sd = np.maximum(np.sqrt(variances), 1e-9)
    above = _normal_cdf((means - log_ratio) / sd)
    return np.asarray(np.clip(np.einsum("...k,...kj->...j", weights, above), 0.0, 1.0))


def _normal_cdf(values: Floats) -> Floats:
    """Return the cumulative standard normal distribution. The absolute error is below 7.5e-8.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.17.
    """
    size = np.abs(values)
    t = 1.0 / (1.0 + 0.2316419 * size)
    series = np.zeros_like(t)
    for coefficient in (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530):
        series = (series + coefficient) * t
    tail = np.exp(-0.5 * size * size) / math.sqrt(2.0 * math.pi) * series
    return np.asarray(np.where(values > 0, 1.0 - tail, tail))
