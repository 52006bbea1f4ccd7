"""Division of the window of a report into hours, days, weeks or months of local time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.protocol.usage_requests import MAX_INTERVALS
from slurm_energy.reports.utilization.grammar import Interval

_HOUR_S: Final = 3600


def interval_edges(start: float, end: float, interval: Interval) -> tuple[int, ...]:
    """Return the start and the end of each interval of a time window, in whole Unix seconds.

    Days, weeks (from Monday) and months begin at local midnight, so that a day may have 23 or 25 hours. The
    first and the last interval are cut to the window.

    Args:
        start: start of the window, Unix seconds.
        end: end of the window, after its start.
        interval: length of the intervals.

    Raises:
        UsageError: there are too many intervals.
    """
    edges = [int(start)]
    last = max(int(end), int(start) + 1)
    while interval is not Interval.ALL and (edge := _next_edge(edges[-1], interval)) < last:
        edges.append(edge)
        if len(edges) > MAX_INTERVALS:
            raise UsageError(
                f"interval={interval}: more than {MAX_INTERVALS} intervals",
                todo="write a longer interval or a shorter window",
            )
    return (*edges, last)


def _next_edge(edge: int, interval: Interval) -> int:
    if interval is Interval.HOUR:
        return edge - edge % _HOUR_S + _HOUR_S
    day = datetime.fromtimestamp(edge).replace(hour=0, minute=0, second=0, microsecond=0)
    if interval is Interval.DAY:
        following = day + timedelta(days=1)
    elif interval is Interval.WEEK:
        following = day + timedelta(days=7 - day.weekday())
    else:
        following = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
    return int(following.timestamp())
