"""Distributions, given as equally likely values, from weighted observations.

An observation may be only a lower bound (censored).

Pure arithmetic on floats; this module has no notion of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

ATOMS: Final = 40
"""Number of equally likely values of a `Grid`. Each value stands for 2.5 %, so 5 % and 95 % lie between two
values.
"""

Grid = tuple[float, ...]
"""`ATOMS` values in ascending order."""

Observation = tuple[float, float, bool]
"""Value, weight, and whether the value is a lower bound only (censored)."""

EVEN: Final[Grid] = tuple((index + 0.5) / ATOMS for index in range(ATOMS))
"""Uniform distribution from 0 to 1."""

TAIL: Final = ATOMS // 20
QUARTER: Final = ATOMS // 4


def mix(
    observations: Iterable[Observation], general: Grid | None = None, general_weight: float = 0.0
) -> Grid:
    """Return the predictive distribution of the next value, given weighted observations.

    The result is the predictive distribution of a Dirichlet process. Each observation counts with its weight.
    The distribution `general` counts as `general_weight` observations. The mass of a censored observation is
    redistributed to larger values in proportion to their mass. The largest value keeps its mass.

    Args:
        observations: values, weights and censoring flags. At least one weight must be positive, unless
            `general_weight` is positive.
        general: distribution of the values in a more general group of cases; None means not available.
        general_weight: weight of `general` in observations, at least 0.

    Raises:
        ValueError: there are no observations and no general distribution.

    Source: Ferguson 1973 (Dirichlet process); Kaplan and Meier 1958, Efron 1967 (mass moves to the right).
    """
    pooled = [(value, censored, weight) for value, weight, censored in observations if weight > 0]
    if general is not None and general_weight > 0:
        each = general_weight / len(general)
        pooled += [(value, False, each) for value in general]
    if not pooled:
        raise ValueError("no observation")
    pooled.sort()
    return _quantiles(pooled)


def _quantiles(pooled: Sequence[tuple[float, bool, float]]) -> Grid:
    """Return the quantiles of a distribution, estimated from censored observations (Kaplan-Meier).

    A censored observation is only a lower bound of the value. The function returns `ATOMS` quantiles.

    Args:
        pooled: observations as (value, whether it is censored, weight), in ascending order.
    """
    at_risk = sum(weight for _, _, weight in pooled)
    negligible = at_risk * 1e-9
    survival, target = 1.0, 0.5 / ATOMS
    atoms: list[float] = []
    for value, censored, weight in pooled:
        remaining = at_risk - weight
        if not censored:
            survival *= remaining / at_risk if remaining > negligible else 0.0
            while len(atoms) < ATOMS and 1 - survival > target - 1e-9:
                atoms.append(value)
                target += 1 / ATOMS
        at_risk = max(remaining, negligible)
    return (*atoms, *(pooled[-1][0],) * (ATOMS - len(atoms)))


def scale_grid(grid: Grid, factor: float) -> Grid:
    """Multiply a distribution by a factor of at least 0.

    If `grid` is the distribution of X, the result is the distribution of X times `factor`.
    """
    return tuple(value * factor for value in grid)


def spread_by(grid: Grid, factors: Sequence[float]) -> Grid:
    """Return the distribution of a quantity that is multiplied by a random factor.

    If `grid` is the distribution of X, the result is the distribution of X times the factor. The random
    factor is any of `factors` with equal probability.
    """
    return mix((value * factor, 1.0, False) for value in grid for factor in factors)


def low(grid: Sequence[float]) -> float:
    """Return the 5 % quantile of a distribution of `ATOMS` equally likely values."""
    return (grid[TAIL - 1] + grid[TAIL]) / 2


def high(grid: Sequence[float]) -> float:
    """Return the 95 % quantile of a distribution.

    The distribution is given by `ATOMS` equally likely values in ascending order.
    """
    return (grid[-TAIL] + grid[-TAIL - 1]) / 2


def middle(grid: Sequence[float]) -> float:
    """Return the median of a distribution, which is given as `ATOMS` equally likely values."""
    return (grid[ATOMS // 2 - 1] + grid[ATOMS // 2]) / 2


def mean(grid: Sequence[float]) -> float:
    """Return the interquartile mean of a distribution: the mean of the middle half of its values.

    This mean always lies between the 5 and 95 % quantiles. A single outlier does not change this mean.
    """
    return min(max(sum(grid[QUARTER:-QUARTER]) / (ATOMS - 2 * QUARTER), low(grid)), high(grid))
