"""Selection of the best alternative when predictions are uncertain. Pure functions.

The choice between power limits depends mainly on the uncertain power demand of the job: too low a limit costs
far more than too high a limit. A job drawing k times the predicted power under a limit L behaves like the
predicted job under a limit L/k.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TOLERANCE = 0.02
"""Relative excess up to which alternatives of a job that was never measured count as equal to the best
alternative. The first of the equal alternatives is selected. Power limits are listed in rising order, so this
is the lowest limit, which leaves the largest part of a power budget to other jobs.
"""
UNSEEN_POWER_DEVIATION = 0.17
"""Standard deviation of ln(measured / predicted power) of a workload that was never measured.

Left-out networks have root mean square errors of 0.15 (A40) and 0.13 (RTX 6000) in rows where the limit
binds. The value is wider by sqrt(6 / 4) because there are only six networks (variance of Student's t). Other
estimates differ: docs/oracle.md.
"""
CASES = ((-(3.0**0.5), 1 / 6), (0.0, 2 / 3), (3.0**0.5, 1 / 6))
"""Deviations from the prediction in standard deviations, each with its probability.

Source: Gauss-Hermite quadrature with three points.
"""


PROBABILITIES = tuple(probability for _, probability in CASES)
USUAL_CAP_TOLERANCE = 0.04
"""Relative excess of the objective up to which power limits count as equal to the best limit, if the response
is transferred. Of the equal limits, the one nearest to the limit that is best on average on other kinds of
device is selected.
"""
EQUAL_WEIGHT_ROWS = 12.0
"""Number of measurements at which the transferred predictions with and without the measurements have equal
weight. From the same number on, a search fits factors of the workload.
"""


def expected_objective(values: Sequence[Array], probabilities: Sequence[float] = PROBABILITIES) -> Array:
    """Return the expected objective of each of n alternatives, shape (n,); lower is better.

    A case is one assumption about the errors of the predictions. In each case, the objectives are divided by
    their minimum over the alternatives. The result is the mean over the cases, weighted by the probabilities
    of the cases.

    Args:
        values: objectives of the alternatives in each case, shape (n,) each. An infinite value excludes the
            alternative.
        probabilities: probability of each case.
    """
    pairs = zip(probabilities, values, strict=True)
    return np.asarray(sum(share * case / case.min() for share, case in pairs))


def measurement_weight(rows: float) -> float:
    """Return how much a prediction relies on measurements of the same kind of device, from 0 to 1.

    The remaining weight belongs to predictions that use only other kinds of device. The weight is quadratic
    in the number of measurements, so that a few measurements have little weight. The errors of a few
    measurements are correlated, because the measurements share power limits, batches and the form of the
    model.

    Args:
        rows: effective number of measurements (`Evidence.effective_count`).
    """
    return rows**2 / (rows**2 + EQUAL_WEIGHT_ROWS**2)


def select_alternative(values: Array, support: Array) -> int:
    """Return the index of the first alternative whose value is close enough to the minimum.

    Args:
        values: expected objectives of n alternatives, shape (n,); lower is better.
        support: how close the batch size of each alternative is to a measured batch size, 0 (far) to 1
            (measured), shape (n,). The higher the support, the smaller the tolerance for values above the
            minimum.
    """
    best = int(np.argmin(values))
    tolerance = TOLERANCE * (1.0 - float(support[best]))
    return int(np.flatnonzero(values <= values[best] * (1.0 + tolerance))[0])


def select_near_usual_cap(values: Array, cap_watts: Array, usual_watts: float) -> int:
    """Return the index of the best power limit for a job that was not measured on this device.

    The job's response to power limits is known only from other kinds of device, so the expected values are
    inexact. Among limits with nearly the best expected value, the limit nearest to the usual limit is
    chosen.

    Args:
        values: expected objective at each of n power limits, shape (n,); lower is better.
        cap_watts: the limits in watts, shape (n,). A limit equal to the design power means that there is no
            limit.
        usual_watts: limit in watts that is best on average on other kinds of device.
    """
    candidates = np.flatnonzero(values <= values.min() * (1.0 + USUAL_CAP_TOLERANCE))
    return int(candidates[np.argmin(np.abs(cap_watts[candidates] - usual_watts))])
