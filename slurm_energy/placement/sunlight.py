"""Elevation of the sun, for placement that follows the sun.

The declination is that of Cooper (1969); the equation of time (at most 17 minutes) is neglected.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from slurm_energy.placement.sites import Floats

_DAY_S = 86400.0
_YEAR_DAYS = 365.2425
_STEP_S = 900.0
_MAX_STEPS = 960


def sunlight(unix_s: ArrayLike, latitude_degrees: float, longitude_degrees: float) -> Floats:
    """Return the sine of the sun's elevation; 0 while the sun is below the horizon.

    Args:
        unix_s: Unix time in seconds.
        latitude_degrees: latitude, north positive. If NaN, the result is NaN.
        longitude_degrees: longitude, east positive. If NaN, the result is NaN.
    """
    days = np.asarray(unix_s, np.float64) / _DAY_S
    day_of_year = np.mod(days, _YEAR_DAYS) + 1.0
    declination = np.radians(23.45) * np.sin(2 * np.pi * (284.0 + day_of_year) / _YEAR_DAYS)
    hour_angle = 2 * np.pi * (np.mod(days, 1.0) - 0.5) + np.radians(longitude_degrees)
    latitude = np.radians(latitude_degrees)
    sine = np.sin(latitude) * np.sin(declination)
    sine = sine + np.cos(latitude) * np.cos(declination) * np.cos(hour_angle)
    result: Floats = np.maximum(0.0, sine)
    return result


def mean_sunlight(start_s: float, end_s: float, latitude_degrees: float, longitude_degrees: float) -> float:
    """Return the mean of `sunlight` between two Unix times, sampled every 15 minutes.

    `sunlight` is the sine of the sun's elevation, and 0 at night.
    """
    steps = int(min(_MAX_STEPS, max(1.0, np.ceil((end_s - start_s) / _STEP_S))))
    middles = start_s + (np.arange(steps) + 0.5) * (end_s - start_s) / steps
    return float(np.mean(sunlight(middles, latitude_degrees, longitude_degrees)))
