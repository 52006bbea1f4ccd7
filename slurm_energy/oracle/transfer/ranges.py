"""Half width of the 90 % range of a prediction, in units of the predicted standard deviation.

A score is the absolute error of the logarithm of a prediction, divided by the predicted standard deviation.
The half width is the 90 % quantile of the scores that future measurements would have. It is computed as the
geometric mean of two estimates of this quantile.

The first estimate is the quantile of Student's t, which holds for normal errors. It is scaled up if the
observations scatter more than the prior predicts.

The second estimate is a conformal quantile of a pool of scores. The pool contains two kinds of scores: the
scores of the observations, each predicted from all other observations, and the scores of predictions of one
kind of device from other kinds. This estimate assumes no distribution, but it is based on few scores.
Source: Vovk et al., Algorithmic Learning in a Random World, section 2.2.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

COVERAGE: Final = 0.9
"""Fraction of the measurements that a range shall cover."""
SCORE_LEVELS: Final = (np.arange(20) + 0.5) / 20
"""Probabilities of the quantiles that describe a distribution of scores."""
NORMAL_SCORES: Final = tuple(round(NormalDist().inv_cdf(0.5 + level / 2), 4) for level in SCORE_LEVELS)
"""Quantiles of the scores of normal errors with the predicted variance."""
SCALE_WEIGHT: Final = 3.0
"""Weight of the predicted variances and of the scores between kinds of device in the scale of Student's t, in
observations.
"""
SCORES_WEIGHT: Final = COVERAGE / (1.0 - COVERAGE)
"""Weight of the scores between kinds of device in the pool, in observations. This is the minimum number of
scores for which a conformal quantile exists.
"""
_NORMAL_95: Final = 1.6448536269514722


def prior_half_width(scores: Sequence[float]) -> float:
    """Return the half width of the 90 % range of a prediction for a device without observations.

    The half width is stated in predicted standard deviations. It is the 90 % quantile of the scores. A
    score is the error of a prediction divided by its predicted standard deviation. The scores come from
    tests in which one kind of device was predicted from other kinds.

    Args:
        scores: quantiles of the scores at the levels `SCORE_LEVELS`.
    """
    return float(np.interp(COVERAGE, SCORE_LEVELS, scores))


def half_width(scores: Sequence[float], own_scores: Array, count: int, scatter: float) -> float:
    """Return the half width of the 90 % range of predicted time or power.

    The result is stated in predicted standard deviations. It is the geometric mean of two estimates. The
    first estimate comes from Student's t distribution. The second estimate is a quantile of scores
    (conformal prediction). The score of a prediction is the absolute error of its logarithm, in predicted
    standard deviations.

    Args:
        scores: scores of predictions of one kind of device from measurements of other kinds, given as
            their quantiles (`SCORE_LEVELS`).
        own_scores: scores of the observations on this kind of device. Each observation is predicted from
            all the others.
        count: number of observations from which `scatter` was computed.
        scatter: observed scatter of the observations divided by the expected scatter.
    """
    prior_scale = prior_half_width(scores) / _NORMAL_95
    scale = scatter * prior_scale ** (SCALE_WEIGHT / (SCALE_WEIGHT + count))
    student = scale * student_95(SCALE_WEIGHT + count)
    return float(np.sqrt(student * conformal_quantile(scores, own_scores)))


def conformal_quantile(scores: Sequence[float], own_scores: Array) -> float:
    """Return the score that a new measurement does not exceed with probability `COVERAGE`.

    A score is the absolute error of a prediction divided by the predicted standard deviation. The scores
    `scores` and `own_scores` are put into one pool, and the result is a quantile of the pool. With n as the
    total weight of the pool, the rank of the quantile is COVERAGE (n + 1). Each of `own_scores` has the
    weight 1. All of `scores` together have the weight `SCORES_WEIGHT`.

    Args:
        scores: quantiles (`SCORE_LEVELS`) of the scores of predictions between other kinds of device.
        own_scores: scores of the m observations on this kind of device, shape (m,). Each observation is
            predicted from all the others.
    """
    if not len(own_scores):
        return prior_half_width(scores)
    pooled = np.concatenate((scores, own_scores))
    weights = np.concatenate((np.full(len(scores), SCORES_WEIGHT / len(scores)), np.ones(len(own_scores))))
    order = np.argsort(pooled, kind="stable")
    ranks = np.cumsum(weights[order]) - weights[order] / 2.0
    return float(np.interp(COVERAGE * (weights.sum() + 1.0), ranks, pooled[order]))


def student_95(free: float) -> float:
    """Return the 95 % quantile of Student's t distribution.

    `free` is the number of degrees of freedom, which must be at least 4.

    Source: Abramowitz and Stegun, 26.7.5.
    """
    z = _NORMAL_95
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / free + second / free**2 + third / free**3
