"""Linear regression with the confidence interval of one coefficient.

Every estimated effect of a deployment is computed with this regression.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_energy.study.statistics.student_t import student_cdf, student_quantile

Floats = NDArray[np.float64]

_MIN_VARIANCE_SHARE = 1e-24


@dataclass(frozen=True, slots=True)
class CoefficientEstimate:
    """A coefficient of a regression.

    Attributes:
        value: estimated value of the coefficient.
        error: standard error.
        freedom: degrees of freedom of the error.
        weights: the estimate is the scalar product of these weights and the values.
    """

    value: float
    error: float
    freedom: float
    weights: Floats

    def interval(self, level: float) -> tuple[float, float]:
        """Return the two-sided confidence interval for a level such as 0.95."""
        half = student_quantile(0.5 + level / 2.0, self.freedom) * self.error
        return self.value - half, self.value + half

    def p_value(self) -> float:
        """Return the two-sided p-value of the hypothesis that the coefficient is 0."""
        if self.error <= 0.0:
            return 1.0 if self.value == 0.0 else 0.0
        return min(1.0, 2.0 * (1.0 - student_cdf(abs(self.value) / self.error, self.freedom)))


def weekday_columns(weekday: NDArray[np.int64]) -> Floats:
    """Return 0/1 columns (dummy variables) for the weekdays, as regressors of a linear regression.

    There is one column for each weekday that occurs in the data, except the first one. The first weekday
    is the reference.
    """
    present = np.unique(weekday)[1:]
    columns: Floats = (weekday[:, None] == present[None, :]).astype(np.float64)
    return columns


def coefficient(columns: Floats, values: Floats, serial: bool = False) -> CoefficientEstimate | None:
    """Return the estimate of the coefficient of the last column; None if the data do not determine it.

    Args:
        columns: matrix of regressors with one row per period, including an intercept.
        values: one value per period.
        serial: whether the error allows for positive correlation between the residuals of neighbouring
            periods, as in a first-order autoregressive process. If so, and if the correlation is r, the
            variance is multiplied by (1 + r) / (1 - r), and the degrees of freedom are divided by this
            factor.
    """
    rows, width = columns.shape
    others, last = columns[:, :-1], columns[:, -1]
    basis = _orthonormal(others)
    own = last - basis @ (basis.T @ last)
    strength = float(own @ own)
    freedom = float(rows - basis.shape[1] - 1)
    if freedom < 1.0 or strength <= 1e-9 * max(1.0, float(last @ last)):
        return None
    weights = own / strength
    value = float(weights @ values)
    residuals = values - basis @ (basis.T @ values) - value * own
    scale = float(values @ values) * _MIN_VARIANCE_SHARE
    variance = max(float(residuals @ residuals) / freedom, scale)
    error = float(np.sqrt(variance / strength))
    if serial:
        correlation = _neighbour_correlation(residuals, width)
        inflation = (1.0 + correlation) / (1.0 - correlation)
        error *= float(np.sqrt(inflation))
        freedom = min(freedom, max(3.0, freedom / inflation))
    return CoefficientEstimate(value, error, freedom, weights)


def residual_spread(columns: Floats, values: Floats, more_parameters: int = 0) -> tuple[float, float]:
    """Return standard deviation and neighbour correlation of the residuals of a regression.

    Args:
        columns: matrix of regressors with one row per period, including an intercept.
        values: one value per period.
        more_parameters: number of further parameters that were already fitted to the values.

    Returns:
        Standard deviation of the residuals, and correlation of neighbouring residuals in 0..0.9; NaN and 0
        with too few values.
    """
    basis = _orthonormal(columns)
    freedom = len(values) - basis.shape[1] - more_parameters
    if freedom < 1:
        return float("nan"), 0.0
    residuals = values - basis @ (basis.T @ values)
    correlation = _neighbour_correlation(residuals, columns.shape[1])
    return float(np.sqrt(residuals @ residuals / freedom)), correlation


def _orthonormal(columns: Floats) -> Floats:
    """Return an orthonormal basis of the columns. Linearly dependent columns are left out."""
    if columns.shape[1] == 0:
        return columns
    left, strengths, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, strengths > 1e-9 * strengths[0]]


def _neighbour_correlation(residuals: Floats, parameters: int) -> float:
    """Return the correlation of neighbouring residuals of a regression, in the range 0 to 0.9.

    The estimate is corrected for two errors. In a regression with p parameters on n values, residuals have a
    correlation of about -p/n even if the errors are independent. The estimate of a correlation r is also
    biased by -(1 + 3 r) / n. Source: Marriott and Pope, Biometrika 41 (1954), equation for the first-order
    process.
    """
    count = len(residuals)
    total = float(residuals @ residuals)
    if count < 3 or total <= 0.0:
        return 0.0
    raw = float(residuals[1:] @ residuals[:-1]) / total
    corrected = raw + (parameters + 3.0 * max(0.0, raw)) / count
    return float(np.clip(corrected, 0.0, 0.9))
