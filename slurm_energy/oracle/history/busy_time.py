"""Time during which at least one run of a group of runs is in progress. Pure arithmetic."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

MAX_INTERVALS: Final = 16
"""Maximum number of disjoint intervals; beyond it, the shortest gap between two of them counts as busy."""


class BusyTime:
    """Sum of the run times of a group of runs.

    If more than `depth` runs are simultaneous, only `depth` of them count.

    Only `MAX_INTERVALS` intervals are stored. Beyond this number, the shortest gap between two intervals
    counts as busy. A later run in a gap that counts as busy therefore adds too little time, never too much.
    The sum never exceeds `depth` times the elapsed time.

    Args:
        depth: maximum number of simultaneous runs that count.
    """

    __slots__ = ("_layers",)

    def __init__(self, depth: int = 1) -> None:
        # Layer n holds the time in which more than n runs ran: start and end of each interval in turn.
        self._layers = tuple(array("d") for _ in range(depth))

    def add(self, start_s: float, end_s: float) -> float:
        """Add a run. Return the seconds by which the run increases the busy time, at most its own length.

        Args:
            start_s: start in Unix seconds.
            end_s: end in Unix seconds.
        """
        pieces = [(start_s, end_s)] if end_s > start_s else []
        length_s = sum(end - start for start, end in pieces)
        for edges in self._layers:
            pieces = [overlap for start, end in pieces for overlap in _insert(edges, start, end)]
        return max(0.0, length_s - sum(end - start for start, end in pieces))

    @property
    def last_end_s(self) -> float:
        """Latest end of all runs added so far, in Unix seconds; 0 if no run was added."""
        return self._layers[0][-1] if self._layers[0] else 0.0


def _insert(edges: array[float], start_s: float, end_s: float) -> list[tuple[float, float]]:
    """Add an interval to a list of intervals, and return the parts that were already covered.

    Args:
        edges: the list, which is changed in place. It contains the start and the end of each interval in
            turn, in ascending order, in Unix seconds. The intervals do not overlap.
        start_s: start of the new interval.
        end_s: end of the new interval.

    Returns:
        Start and end of each part of the new interval that was covered before the call.
    """
    first, last = bisect_left(edges, start_s), bisect_right(edges, end_s)
    # An odd number of edges before a time means that it lies inside an interval.
    inside = [*([start_s] if first % 2 else []), *edges[first:last], *([end_s] if last % 2 else [])]
    edges[first:last] = array("d", [*([] if first % 2 else [start_s]), *([] if last % 2 else [end_s])])
    if len(edges) > 2 * MAX_INTERVALS:
        shortest = min(range(1, len(edges) - 1, 2), key=lambda place: edges[place + 1] - edges[place])
        del edges[shortest : shortest + 2]
    return list(zip(inside[::2], inside[1::2], strict=True))
