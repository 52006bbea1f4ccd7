"""Power under a budget over time, in regular intervals, from samples of senergyctld.

All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final

_STEPS_S: Final = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 7 * 86400)


@dataclass(frozen=True, slots=True)
class PowerHistory:
    """Power under one budget in regular intervals. NaN means unknown, or no limit.

    Attributes:
        budget: name of the budget.
        begin_unix_s: start of the first interval.
        interval_s: length of an interval in seconds.
        limit_watts: lowest limit of each interval.
        measured_watts, max_watts: mean and maximum of the measured power.
        committed_watts: maximum of the committed power. Committed power is the maximum power that the limits
            in force permit devices to draw.
        capped_watts: mean power by which limits reduced the power of devices.
        over_s: seconds of each interval in which the measured power was above the limit.
    """

    budget: str
    begin_unix_s: float
    interval_s: float
    limit_watts: list[float]
    measured_watts: list[float]
    max_watts: list[float]
    committed_watts: list[float]
    capped_watts: list[float]
    over_s: list[float]

    @property
    def duration_s(self) -> float:
        """Duration of all intervals."""
        return self.interval_s * len(self.limit_watts)

    @property
    def energy_joules(self) -> float | None:
        """Measured energy; None if the power is unknown in all intervals."""
        powers = [watts for watts in self.measured_watts if not math.isnan(watts)]
        return math.fsum(powers) * self.interval_s if powers else None


def regular_history(series: Mapping[str, Any], begin: float, end: float, intervals: int) -> PowerHistory:
    """Return samples of one budget in regular intervals.

    A sample counts for each interval that it overlaps, with the duration of the overlap as its weight.

    Args:
        series: a series of the response to `GET /v1/budget/history`.
        begin: start of the time range in Unix seconds.
        end: end of the time range in Unix seconds.
        intervals: number of intervals into which the time range is divided.
    """
    interval_s = (end - begin) / intervals
    rows: list[list[int]] = [[] for _ in range(intervals)]
    starts: list[float] = series["unix_s"]
    spans: list[float] = series["span_s"]
    for row, (start, span_s) in enumerate(zip(starts, spans, strict=True)):
        first = max(0, math.floor((start - begin) / interval_s + 1e-9))
        last = min(intervals - 1, math.ceil((start + span_s - begin) / interval_s - 1e-9) - 1)
        for index in range(first, last + 1):
            rows[index].append(row)

    def overlap(index: int, row: int) -> float:
        low = begin + index * interval_s
        return max(0.0, min(low + interval_s, starts[row] + spans[row]) - max(low, starts[row]))

    def extreme(key: str, choose: Any) -> list[float]:
        values = ([series[key][row] for row in of if series[key][row] is not None] for of in rows)
        return [choose(known) if known else math.nan for known in values]

    def mean(key: str) -> list[float]:
        means = []
        for index, of in enumerate(rows):
            pairs = [(overlap(index, row), series[key][row]) for row in of if series[key][row] is not None]
            weight = math.fsum(seconds for seconds, _ in pairs)
            means.append(math.fsum(s * watts for s, watts in pairs) / weight if weight > 0 else math.nan)
        return means

    over = [
        math.fsum(series["over_s"][row] * overlap(index, row) / spans[row] for row in of if spans[row] > 0)
        for index, of in enumerate(rows)
    ]
    return PowerHistory(
        budget=str(series["budget"]),
        begin_unix_s=begin,
        interval_s=interval_s,
        limit_watts=extreme("limit_watts", min),
        measured_watts=mean("measured_watts"),
        max_watts=extreme("max_measured_watts", max),
        committed_watts=extreme("committed_watts", max),
        capped_watts=mean("capped_watts"),
        over_s=over,
    )


def highest(values: Sequence[float]) -> float | None:
    """Return the highest known value, or None if all values are unknown."""
    return max((value for value in values if not math.isnan(value)), default=None)


def lowest(values: Sequence[float]) -> float | None:
    """Return the lowest known value, or None if all values are unknown."""
    return min((value for value in values if not math.isnan(value)), default=None)


def clock_ticks(begin: float, end: float, count: int, zone: tzinfo | None = None) -> list[float]:
    """Return at most about `count` round local clock times between `begin` and `end`, in Unix seconds."""
    raw_s = (end - begin) / max(1, count)
    step_s = next((step for step in _STEPS_S if step >= raw_s), math.ceil(raw_s / 86400) * 86400)
    first = datetime.fromtimestamp(begin, zone)
    at = first.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    # Wall-clock arithmetic, so that the ticks stay at round times after a change of the clock.
    at += timedelta(seconds=(first - at) // timedelta(seconds=step_s) * step_s)
    ticks: list[float] = []
    while (time := at.timestamp()) <= end:
        if time >= begin and (not ticks or time > ticks[-1]):
            ticks.append(time)
        at += timedelta(seconds=step_s)
    return ticks


def clock_label(unix_s: float, begin: float, end: float, zone: tzinfo | None = None) -> str:
    """Return the label of a tick: the time of day, or the date if ticks are days apart or at midnight."""
    local = datetime.fromtimestamp(unix_s, zone)
    if end - begin > 4 * 86400 or (end - begin > 86400 and (local.hour, local.minute) == (0, 0)):
        return local.strftime("%-d %b")
    return local.strftime("%H:%M:%S" if end - begin < 600 else "%H:%M")
