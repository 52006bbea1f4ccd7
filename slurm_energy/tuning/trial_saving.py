"""Value of a trial: the saving of later runs of a program if the next run tries a point.

A point is an operating point, that is, a set of hardware settings. A run at a point has many possible
results. Each result changes the weights of the hypotheses about the program, and corrects these hypotheses.
Another point may then be the best. The value of a trial is the reduction of the expected cost of the best
point, averaged over the possible results (one-step lookahead, "knowledge gradient": Frazier, Powell,
Dayanik: A Knowledge-Gradient Policy for Sequential Information Collection, SIAM J. Control Optim. 47 (2008)
2410).

The module is pure. Random numbers come only from the caller's generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.tuning.log_response import LogResponse

Floats = NDArray[np.float64]

_HYPOTHESES: Final = 150
_RESULTS: Final = 16
"""Possible results of a trial. Three times as many results or hypotheses change no mean loss visibly."""
_RESULT_ERROR: Final = 0.02
"""Assumed relative standard error of the time and of the power of a whole run."""


AfterTrial = Callable[[Floats, Floats, Floats, Floats], Floats]
"""Cost of the points after results of a trial; infinite where a point is not allowed then. Its arguments are
the weights (R, K), the means of the logarithm of the time (R, K, J), its variances (J,), and the expected
costs without regard to limits (R, J)."""


def trial_savings(
    weights: Floats,
    time: LogResponse,
    power: LogResponse,
    time_exponent: float,
    best: int,
    tried: NDArray[np.int64],
    after: AfterTrial,
    random: np.random.Generator,
) -> Floats:
    """Return the expected saving in each later run if an operating point is tried now, shape (J,).

    There are J candidate points, and each has its own value. The saving is the reduction of the expected
    cost of a later run. A hypothesis is one possible response of the program to the points.

    Args:
        weights: probability of each of K hypotheses, shape (K,).
        time: distribution of the logarithm of the time.
        power: distribution of the logarithm of the power.
        time_exponent: exponent of the time in the objective. The exponent of the power is 1.
        best: index of the point that is best without a trial.
        tried: indices of the points to evaluate. The saving at other points is 0.
        after: function that returns the costs of allowed points after a trial, see `AfterTrial`.
        random: generator of the possible results.
    """
    kept, weights = _representative(weights)
    time, power = time.some(kept), power.some(kept)
    drawn = np.searchsorted(np.cumsum(weights), (np.arange(_RESULTS) + 0.5) / _RESULTS)
    drawn = np.minimum(drawn, len(weights) - 1)
    noise = random.standard_normal((2, _RESULTS))
    savings = np.zeros(time.means.shape[1])
    for point in tried:
        log_time, time_variances, time_fit = _after(time, int(point), drawn, noise[0])
        log_power, power_variances, power_fit = _after(power, int(point), drawn, noise[1])
        logs = np.log(weights) + time_fit + power_fit
        updated = np.exp(logs - logs.max(axis=1, keepdims=True))
        updated /= updated.sum(axis=1, keepdims=True)
        costs = np.exp(time_exponent * log_time + log_power)
        expected = np.einsum("rk,rkj->rj", updated, costs)
        expected *= np.exp(0.5 * (time_exponent**2 * time_variances + power_variances))
        least = after(updated, log_time, time_variances, expected).min(axis=1)
        savings[point] = np.maximum(expected[:, best] - least, 0.0).mean()
    return savings


def _representative(weights: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return a few hypotheses that represent all hypotheses, and their weights.

    The hypotheses are chosen by systematic sampling.
    """
    places = np.searchsorted(np.cumsum(weights), (np.arange(_HYPOTHESES) + 0.5) / _HYPOTHESES)
    kept, counts = np.unique(np.minimum(places, len(weights) - 1), return_counts=True)
    return kept, counts / _HYPOTHESES


def _after(
    response: LogResponse, point: int, drawn: NDArray[np.int64], noise: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return how the knowledge about a job's response would change after a run at an operating point.

    The knowledge is a set of K hypotheses with a distribution of the response at J points each. The function
    computes the change for R possible results of the run.

    Args:
        response: distribution before the run.
        point: index of the point.
        drawn: hypothesis that is assumed to be true in each of R results, shape (R,).
        noise: standard normal error of each result, shape (R,).

    Returns:
        Means (R, K, J), variances (J,), log likelihood of each hypothesis up to a constant (R, K).
    """
    link = response.covariance[:, point] + response.scale_covariance
    variance = link[point] + response.scale_covariance[point] + response.scale_variance + _RESULT_ERROR**2
    expected = response.means[:, point] + response.scale_means
    results = expected[drawn] + math.sqrt(variance) * noise
    residuals = results[:, None] - expected
    means = response.means + residuals[:, :, None] * (link / variance)
    variances = np.maximum(response.variances - link**2 / variance, 0.0)
    return means, variances, -0.5 * residuals**2 / variance
