"""Local time of the host as an offset from UTC, including summer time. The module needs numpy."""

from __future__ import annotations

import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_STEP_S: Final = 900.0
"""Offsets from UTC change at full quarters of an hour."""


def utc_offsets(times_s: Floats) -> Floats:
    """Return local time minus UTC at each time, in seconds, shape (n,).

    The zone is the time zone of this process. Summer time counts as it was, or will be, at each time.

    Args:
        times_s: finite Unix times, shape (n,).
    """
    quarters, position = np.unique(np.floor(times_s / _STEP_S), return_inverse=True)
    offsets = [time.localtime(quarter * _STEP_S).tm_gmtoff for quarter in quarters.tolist()]
    return np.array(offsets, np.float64)[position]
