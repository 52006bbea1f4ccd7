"""Positions and labels of axis ticks at round numbers, for text, SVG and PNG plots."""

from __future__ import annotations

import math

from slurm_energy.reports.figure_format import plain

_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def nice_step(span: float, count: int) -> float:
    """Return an axis step of 1, 2 or 5 times a power of ten.

    Args:
        span: length of the axis in data units.
        count: approximate number of steps on the axis.
    """
    if not span > 0:
        return 1.0
    raw = span / max(1, count)
    power: float = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))


def value_ticks(top: float, count: int = 4) -> list[float]:
    """Return about `count` axis ticks from 0 to the first round value that is not below `top`."""
    step = nice_step(top, count)
    return [step * i for i in range(max(1, math.ceil(top / step - 1e-9)) + 1)]


def range_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return axis ticks at round values that cover the range from `low` to `high`; at least two."""
    step = nice_step(high - low, count) if high > low else nice_step(abs(high) or 1.0, count)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [step * i for i in range(first, last + 1)]


def time_ticks(duration_s: float, count: int = 6) -> list[float]:
    """Return axis ticks in seconds from 0 to at most `duration_s`.

    The steps are round, for example 15 s or 1 h.
    """
    raw = duration_s / max(1, count)
    step: float
    if raw < 1:
        step = nice_step(duration_s, count)
    else:
        days = 86400.0 * nice_step(duration_s / 86400, count)
        step = next((float(s) for s in _TIME_STEPS_S if s >= raw), days)
    return [step * i for i in range(math.floor(duration_s / step + 1e-9) + 1)]


def time_label(seconds: float, max_s: float) -> str:
    """Return the label of a tick on a time axis: `15 s`, `2:30`, `1:05:00` or `3 d`.

    Args:
        seconds: time of the tick.
        max_s: end of the axis, which determines the unit of all labels.
    """
    if max_s < 120:
        return f"{plain(seconds, 2)} s"
    whole = round(seconds)
    if max_s < 7200:
        return f"{whole // 60}:{whole % 60:02d} min"
    if max_s < 4 * 86400:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{plain(seconds / 86400, 1)} d"


def watt_label(watts: float, top: float) -> str:
    """Return the label of an axis tick for a power in W, kW or MW.

    Args:
        watts: power of the tick.
        top: end of the axis, which determines the unit of all labels.
    """
    factor, unit = (1e6, "MW") if top >= 2e6 else (1e3, "kW") if top >= 2000 else (1.0, "W")
    return f"{plain(watts / factor, 2)} {unit}"
