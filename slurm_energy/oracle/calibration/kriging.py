"""Corrections of the training model for one workload, interpolated between measurements.

The interpolation method is kriging. The corrections (residuals) are factors on the predicted time and power.
They depend on the batch size and the power limit. The module needs numpy and scipy. Its functions take
arrays and return factors. They use neither the training model nor files.

The logarithm of the ratio measured / predicted is modelled as a Gaussian process. Its covariance is the sum
of three terms: a term in the batch size, a term in batch size and power limit, and the noise of each
measurement. The first two terms decrease with distance (Matern, 3/2). The noise grows with the share of the
step in which the device waits for its host. The magnitudes and length scales of the terms maximise the
likelihood of the measurements (Rasmussen and Williams, Gaussian Processes for Machine Learning, Eq. 5.8 and
5.9) times a wide prior. The result is the mean of the process given the measurements (Eq. 2.25): noise is
reduced, and far from all measurements the factor is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from slurm_energy.oracle.training.residuals import Residuals

Array = NDArray[np.float64]
_PRIOR_MEAN = np.log([0.05, 0.05, 1.5, 0.25, 0.02, 0.03])
"""Logarithms of the typical hyperparameters.

In order: size of the batch term, size of the joint term, length scale of the batch in doublings, length scale
of the logarithm of the limit, noise, and noise of a step in which the device only waits.
"""
_PRIOR_DEVIATION = np.array([1.0, 1.0, 0.7, 0.7, 1.0, 1.0])
"""Standard deviations of the logarithms in `_PRIOR_MEAN`."""
_BOUNDS = np.log([(1e-3, 1), (1e-3, 1), (0.3, 8), (0.05, 2), (2e-3, 0.3), (1e-3, 0.3)])
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class KrigingResult:
    """Errors of the training model on one workload, interpolated between measurements (Kriging).

    Attributes:
        residuals: table of factors by which predictions are multiplied.
        held_out_time: interpolated ratio of measured to predicted time at each measurement, shape (n,). It
            is estimated only from the measurements with other batch sizes.
        held_out_power: the same ratio for the power, estimated in the same way, shape (n,).
    """

    residuals: Residuals
    held_out_time: Array
    held_out_power: Array


def krige(batch: Array, cap_watts: Array, host_wait_share: Array, time: Array, power: Array) -> KrigingResult:
    """Fit a correction of the predicted time and power of one workload to its measurements.

    The fit (kriging) uses the ratio of the measured to the predicted value of each measurement. There are n
    measurements. All arguments have the shape (n,).

    Args:
        batch: samples per device and step.
        cap_watts: power limits, finite.
        host_wait_share: fraction of the step in which the device waits for its host if there is no power
            limit.
        time: measured seconds divided by predicted seconds.
        power: measured watts divided by predicted watts; NaN if the watts were not measured.
    """
    low, high = float(batch.min()), float(batch.max())
    batches = np.array([low / 4, low / 2, *np.unique(batch), high * 2, high * 4])
    caps = np.unique(cap_watts)
    rows, columns = (axis.ravel() for axis in np.meshgrid(batches, caps, indexing="ij"))
    tables, held_out = [], []
    for ratio in (time, power):
        measured = np.isfinite(ratio)
        field = _GaussianField(
            batch[measured], cap_watts[measured], host_wait_share[measured], np.log(ratio[measured])
        )
        table = np.exp(field.mean(rows, columns)).reshape(len(batches), len(caps))
        table[[0, -1]] = 1.0
        tables.append(tuple(map(tuple, np.round(table, _DIGITS).tolist())))
        factors = np.ones(len(ratio))
        factors[measured] = np.exp(field.held_out_by_batch())
        held_out.append(factors)
    residuals = Residuals(tuple(batches.tolist()), tuple(caps.tolist()), *tables)
    return KrigingResult(residuals, *held_out)


class _GaussianField:
    """Gaussian process that corrects predictions of time or power by measurements.

    Its output is the logarithm of the measured value divided by the predicted value. Its inputs are the
    logarithms of batch size and power limit. The process is fitted to n measurements; n may be 0.
    """

    def __init__(self, batch: Array, cap_watts: Array, host_wait_share: Array, values: Array) -> None:
        self._batch, self._cap, self._host_wait_share, self._values = (
            np.log2(batch),
            np.log(cap_watts),
            host_wait_share,
            values,
        )
        self._sizes = _PRIOR_MEAN
        if len(values):
            result = minimize(
                self._negative_log_posterior, _PRIOR_MEAN, jac=True, method="L-BFGS-B", bounds=_BOUNDS
            )
            self._sizes = result.x

    def mean(self, batch: Array, cap_watts: Array) -> Array:
        """Return the expected deviation of measurements from the model at m positions, shape (m,).

        The deviation is log(measured value / predicted value). The value is the time or the power of a
        training step. The expectation is the mean of the Gaussian process, given the measurements.

        Args:
            batch: batch sizes, shape (m,).
            cap_watts: power limits in watts, shape (m,).
        """
        if not len(self._values):
            return np.zeros(len(batch))
        parts = _parts(np.log2(batch), np.log(cap_watts), self._batch, self._cap, self._sizes)
        return np.asarray(sum(parts[:2]) @ np.linalg.solve(self._covariance(), self._values))

    def held_out_by_batch(self) -> Array:
        """Return the posterior mean at each measurement, given only measurements with other batch sizes.

        The shape is (n,).

        Source: Rasmussen and Williams, section 5.4.2, for blocks.
        """
        if not len(self._values):
            return np.zeros(0)
        inverse = np.linalg.inv(self._covariance())
        weighted, means = inverse @ self._values, np.empty(len(self._values))
        for own in np.unique(self._batch):
            at = np.flatnonzero(self._batch == own)
            means[at] = self._values[at] - np.linalg.solve(inverse[np.ix_(at, at)], weighted[at])
        return means

    def _covariance(self) -> Array:
        parts = _parts(self._batch, self._cap, self._batch, self._cap, self._sizes)
        return np.asarray(parts[0] + parts[1] + np.diag(sum(_noises(self._sizes, self._host_wait_share))))

    def _negative_log_posterior(self, sizes: Array) -> tuple[float, Array]:
        """Return minus the logarithm of likelihood times prior, up to a constant, and its gradient.

        The optimizer that fits the covariance minimizes this value.

        Args:
            sizes: logarithms of the magnitudes and length scales of the covariance (the hyperparameters).
        """
        of_batch, of_both, wider_batch, wider_cap = _parts(
            self._batch, self._cap, self._batch, self._cap, sizes
        )
        noises = _noises(sizes, self._host_wait_share)
        factor = cho_factor(of_batch + of_both + np.diag(sum(noises)), lower=True)
        weighted = cho_solve(factor, self._values)
        deviation = (sizes - _PRIOR_MEAN) / _PRIOR_DEVIATION
        total = 0.5 * self._values @ weighted + np.log(np.diag(factor[0])).sum() + 0.5 * deviation @ deviation
        gradient = 0.5 * (cho_solve(factor, np.eye(len(self._values))) - np.outer(weighted, weighted))
        slopes = [np.sum(gradient * part) for part in (2 * of_batch, 2 * of_both, wider_batch, wider_cap)]
        slopes += [np.diag(gradient) @ (2 * noise) for noise in noises[:2]]
        return float(total), np.array(slopes) + deviation / _PRIOR_DEVIATION


def _parts(batch: Array, cap: Array, to_batch: Array, to_cap: Array, sizes: Array) -> tuple[Array, ...]:
    """Return the two covariance terms of the kriging model, and their derivatives.

    The derivatives are by the logarithm of each length scale. Each result is an array of shape (n, m). The
    rows are the n positions (`batch`, `cap`), and the columns are the m positions (`to_batch`, `to_cap`).

    Args:
        batch: logarithms of batch sizes, shape (n,).
        cap: logarithms of power limits, shape (n,).
        to_batch: logarithms of batch sizes, shape (m,).
        to_cap: logarithms of power limits, shape (m,).
        sizes: logarithms of the magnitudes and length scales.
    """
    of_batch, of_both, batch_range, cap_range = np.exp(sizes[:4])
    near, wider = _matern(batch, to_batch, batch_range)
    along, wider_along = _matern(cap, to_cap, cap_range)
    own = of_batch**2 + of_both**2 * along
    return of_batch**2 * near, of_both**2 * near * along, wider * own, of_both**2 * near * wider_along


def _matern(places: Array, others: Array, length_scale: float) -> tuple[Array, Array]:
    """Return the Matern function (3/2) of all distances, and its derivative by the log of `length_scale`.

    Source: Rasmussen and Williams, Eq. 4.17.
    """
    scaled = np.sqrt(3.0) / length_scale * np.abs(np.subtract.outer(places, others))
    return (1.0 + scaled) * np.exp(-scaled), scaled * scaled * np.exp(-scaled)


def _noises(sizes: Array, host_wait_share: Array) -> Sequence[Array]:
    """Return the variances of three kinds of noise of n measurements, each with shape (n,).

    The variances are: the noise of every measurement, the noise that comes from waits for the host, and a
    small constant for numerical stability.
    """
    plain, of_host = np.exp(2 * sizes[4:6])
    return (
        np.full(len(host_wait_share), plain),
        of_host * host_wait_share**2,
        np.full(len(host_wait_share), 1e-8),
    )
