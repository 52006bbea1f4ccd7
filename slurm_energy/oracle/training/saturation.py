"""Saturation functions: the efficiency of an operation as a function of its size. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Saturation = Callable[[Any], Any]


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e^-x), which is 0.5 at 0 and approaches 1. Source: thesis, Eq. 4.12."""
    return 1.0 / (1.0 + np.exp(-x))


def arctan(x: Any) -> Any:
    """Return (2 / pi) arctan x, which is 0 at 0 and approaches 1."""
    return np.arctan(x) * (2.0 / np.pi)


def softsign(x: Any) -> Any:
    """Return x / (1 + x), which is 0 at 0 and approaches 1."""
    return x / (1.0 + x)


def algebraic(x: Any) -> Any:
    """Return x / sqrt(1 + x^2), which is 0 at 0 and approaches 1."""
    return x / np.sqrt(1.0 + x * x)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent, which is 0 at 0 and approaches 1."""
    return np.tanh(x)


SATURATIONS: dict[str, Saturation] = {
    function.__name__: function for function in (sigmoid, arctan, softsign, algebraic, tanh)
}
"""The five saturation functions of the thesis (4.3.7.2), for arguments of at least 0."""
