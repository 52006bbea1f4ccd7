"""Distributions as a few equally likely values: from weighted observations, some of them only lower bounds.

Pure arithmetic on plain floats; nothing here knows jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

ATOMS: Final = 40
"""Equally likely values of a `Grid`: 2.5 % each, so that 5 % and 95 % fall between two of them."""

Grid = tuple[float, ...]
"""`ATOMS` values in ascending order."""

Observation = tuple[float, float, bool]
"""Value, weight, and whether the value is only a lower bound (censored)."""

EVEN: Final[Grid] = tuple((index + 0.5) / ATOMS for index in range(ATOMS))
"""Anything from 0 to 1 with equal chance."""

TAIL: Final = ATOMS // 20
QUARTER: Final = ATOMS // 4


def mix(
    observations: Iterable[Observation], general: Grid | None = None, general_weight: float = 0.0
) -> Grid:
    """Return the distribution of the next value.

    It is the predictive distribution of a Dirichlet process: observations count with their weights, what is
    known of more general cases (`general`) counts as `general_weight` of them. The mass of a censored
    observation goes to larger values in proportion to theirs; if it is the largest it stays where it is.

    Args:
        observations: at least one of positive weight, unless `general` counts.
        general: what to fall back on.
        general_weight: 0 or more.

    Raises:
        ValueError: there is nothing to mix.

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
    """Walk up the Kaplan-Meier curve of (value, censored, weight) in ascending order."""
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
    """Return the distribution of the value times `factor` (0 or more)."""
    return tuple(value * factor for value in grid)


def spread_by(grid: Grid, factors: Sequence[float]) -> Grid:
    """Return the distribution of the value times one of `factors`, each equally likely."""
    return mix((value * factor, 1.0, False) for value in grid for factor in factors)


def low(grid: Sequence[float]) -> float:
    """Return the 5 % quantile."""
    return (grid[TAIL - 1] + grid[TAIL]) / 2


def high(grid: Sequence[float]) -> float:
    """Return the 95 % quantile."""
    return (grid[-TAIL] + grid[-TAIL - 1]) / 2


def middle(grid: Sequence[float]) -> float:
    """Return the median."""
    return (grid[ATOMS // 2 - 1] + grid[ATOMS // 2]) / 2


def mean(grid: Sequence[float]) -> float:
    """Return the mean of the middle half (the interquartile mean).

    So it lies between 5 % and 95 %, and one run of a week does not move the mean of minutes.
    """
    return min(max(sum(grid[QUARTER:-QUARTER]) / (ATOMS - 2 * QUARTER), low(grid)), high(grid))
