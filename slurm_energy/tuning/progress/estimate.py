"""Rate of a job's progress over a measurement window (interval of time), with its standard error.

The module also contains statistics of noisy intervals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.tuning.progress_window import ProgressSource

_PRIOR_VARIATION: Final = 0.05
"""Assumed relative standard deviation of one interval, which counts as much as one measured interval."""
_MAX_CORRELATION: Final = 0.9
_MIN_FOR_CORRELATION: Final = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """Speed of a job in a measurement window.

    The unit of work depends on the source of the speed.

    Attributes:
        units_per_s: completed units of work per second. Depending on the source, a unit is a unit of the
            job's reports, a period of the power, or the work in the first window with this source.
        relative_error: standard error of `units_per_s` divided by `units_per_s`.
        source: signal from which the speed was computed.
        paused_share: fraction of the window that was excluded because the job paused, for example to write a
            checkpoint. The job's mean power includes the pauses.
        spans_cycles: whether the speed was measured over whole cycles of regular pauses. If so, it includes
            the pauses.
    """

    units_per_s: float
    relative_error: float
    source: ProgressSource
    paused_share: float = 0.0
    spans_cycles: bool = False


def relative_error_of_mean(values: Sequence[float], prior_variation: float = _PRIOR_VARIATION) -> float:
    """Return the relative standard error of the mean of a series of neighbouring measurements.

    The variance combines the sample variance with a prior that has the weight of one measurement. Two equal
    measurements therefore do not count as exact. A positive correlation between neighbours increases the
    error.

    Args:
        values: at least one positive measurement, in the order of time.
        prior_variation: assumed relative standard deviation of one measurement.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if mean <= 0:
        return math.inf
    deviations = [value / mean - 1 for value in values]
    squares = math.fsum(deviation * deviation for deviation in deviations)
    variance = (squares + prior_variation**2) / count  # count - 1 measured ones and one assumed one
    error = math.sqrt(variance / count)
    if count >= _MIN_FOR_CORRELATION and squares > 0:
        products = math.fsum(a * b for a, b in itertools.pairwise(deviations))
        correlation = min(_MAX_CORRELATION, max(0.0, products / squares))
        error *= math.sqrt((1 + correlation) / (1 - correlation))
    return error
