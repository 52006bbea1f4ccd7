"""Which alternative to take where predictions may be wrong: the least expected objective. Pure.

The doubt that decides between power limits is how much power a job would draw: too low a limit costs far more
than one too high. A job that draws more by a factor meets a limit as the predicted job would meet one that
is lower by that factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TOLERANCE = 0.02
"""Alternatives this close to the best (a share) count as equal where the very job was never measured: the
first is taken. Power limits come in rising order, so that is the lowest one, which leaves others the most
room in a budget."""
UNSEEN_POWER_DEVIATION = 0.17
"""Standard deviation of the logarithm of measured over predicted power of a workload never measured. Networks
left out have root mean square errors of 0.15 (A40) and 0.13 (RTX 6000) in rows that feel a limit; wider by
sqrt(6 / 4), as they are six (variance of Student's t). Other estimates differ: docs/oracle.md."""
CASES = ((-(3.0**0.5), 1 / 6), (0.0, 2 / 3), (3.0**0.5, 1 / 6))
"""Standard deviations from the prediction, and the probability that each stands for: Gauss-Hermite quadrature
with three points."""


PROBABILITIES = tuple(probability for _, probability in CASES)
USUAL_CAP_TOLERANCE = 0.04
"""Power limits this close to the best (a share) count as equal where the response to limits is transferred
from other kinds of device: the one nearest to the limit that is best there on average is taken."""
EQUAL_WEIGHT_ROWS = 12.0
"""Measurements of a workload at which the transferred prediction with and without them weigh the same. The
number from which a workload has its own factors after a search."""


def expected_objective(values: Sequence[Array], probabilities: Sequence[float] = PROBABILITIES) -> Array:
    """Return the expected objective of each alternative, in units of the least in each case.

    Args:
        values: objective of the alternatives in each case; infinite: not to be taken.
        probabilities: of the cases.
    """
    pairs = zip(probabilities, values, strict=True)
    return np.asarray(sum(share * case / case.min() for share, case in pairs))


def measurement_weight(rows: float) -> float:
    """Return the weight of the prediction from measurements against that from other kinds of device alone.

    The square keeps the weight of a few rows small: their errors are correlated, as they share limits,
    batches, and the form of the model.

    Args:
        rows: effective number of measurements (`Evidence.effective_count`).
    """
    return rows**2 / (rows**2 + EQUAL_WEIGHT_ROWS**2)


def select_alternative(values: Array, support: Array) -> int:
    """Return the place of the alternative to take.

    Args:
        values: expected objective; less is better.
        support: how far each very job was measured, 0 to 1 (`Residuals.support`): the tolerance shrinks with
            it.
    """
    best = int(np.argmin(values))
    tolerance = TOLERANCE * (1.0 - float(support[best]))
    return int(np.flatnonzero(values <= values[best] * (1.0 + tolerance))[0])


def select_near_usual_cap(values: Array, cap_watts: Array, usual_watts: float) -> int:
    """Return the place of the power limit to take among those of one job with a transferred response.

    Args:
        values: expected objective at each limit; less is better.
        cap_watts: the limits; no limit is the design power.
        usual_watts: the limit that is best on other kinds of device on average.
    """
    candidates = np.flatnonzero(values <= values.min() * (1.0 + USUAL_CAP_TOLERANCE))
    return int(candidates[np.argmin(np.abs(cap_watts[candidates] - usual_watts))])
