"""Student's t distribution in pure Python. Every interval and power analysis of a study uses it."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_TERMS = 300


def student_cdf(value: float, freedom: float) -> float:
    """Return the probability that a variable of Student's t distribution is at most `value`.

    Args:
        value: bound that the variable must not exceed.
        freedom: degrees of freedom, more than 0; they need not be a whole number.
    """
    if math.isinf(value):
        return float(value > 0)
    tail = 0.5 * _incomplete_beta(freedom / (freedom + value * value), freedom / 2.0, 0.5)
    return 1.0 - tail if value > 0 else tail


@lru_cache(maxsize=1024)
def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution for a probability.

    Args:
        probability: probability that the variable is at most the quantile; between 0 and 1, both excluded.
        freedom: degrees of freedom, more than 0.
    """
    if not 0.0 < probability < 1.0 or freedom <= 0.0:
        raise ValueError(f"no quantile for probability {probability} and {freedom} degrees of freedom")
    if probability < 0.5:
        return -student_quantile(1.0 - probability, freedom)
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < probability and high < 1e12:
        low, high = high, 2.0 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if student_cdf(middle, freedom) < probability else (low, middle)
    return 0.5 * (low + high)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function by its continued fraction (Lentz's method)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logs + a * math.log(x) + b * math.log1p(-x)) / a
    return front * _continued_fraction(x, a, b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    c, d, result = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0)), 0.0
    result = d
    for term in range(1, _TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        d, c = 1.0 / _nonzero(1.0 + even * d), _nonzero(1.0 + even / c)
        result *= d * c
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        d, c = 1.0 / _nonzero(1.0 + odd * d), _nonzero(1.0 + odd / c)
        result *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return result


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
