"""95 % confidence intervals from repeated runs.

The intervals apply to a mean, or to the difference of two means, such as a gain relative to the reference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

_TABLE: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
)  # fmt: skip
"""Quantiles for 1 to 10 degrees of freedom, for which the expansion below is inaccurate."""
_NORMAL: Final = 1.959964


def student_t(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    The quantile is the factor of a two-sided 95 % interval. Source: Abramowitz and Stegun, Table 26.10 for up
    to 10 degrees of freedom, equation 26.7.5 for more.

    Args:
        freedom: degrees of freedom, at least 1. Fractions are rounded down, which widens the interval.
    """
    whole = int(freedom)
    if whole <= len(_TABLE):
        return _TABLE[max(whole, 1) - 1]
    z = _NORMAL
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / whole + second / whole**2 + third / whole**3


def half_width(values: Sequence[float]) -> float | None:
    """Return the half-width of the 95 % confidence interval of a mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    return student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def difference_half_width(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the half-width of the 95 % confidence interval of the difference of two means.

    The degrees of freedom follow Welch and Satterthwaite, because the variances may differ.

    Args:
        first: values of repeated runs at one point.
        second: values of repeated runs at another point.

    Returns:
        The half-width; None if `first` or `second` has fewer than two values.
    """
    if len(first) < 2 or len(second) < 2:
        return None
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    total = sum(parts)
    if total == 0:
        return 0.0
    share = parts[0] / total
    freedom = 1 / (share**2 / (len(first) - 1) + (1 - share) ** 2 / (len(second) - 1))
    return student_t(freedom) * math.sqrt(total)
