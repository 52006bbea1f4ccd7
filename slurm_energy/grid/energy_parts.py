"""Division of the energy of a job into parts by time, for the computation of emissions and cost.

Nodes deliver energy in periods, usually of an hour. All functions are pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final

KnownPart = tuple[float, float, float]
"""Energy used between two times: start, end (Unix seconds) and joules."""

_MERGED_S: Final = 60.0
"""Duration in which parts must begin, and in which they must end, to be added up."""
_MIN_GAP_S: Final = 1.0
"""Shorter times without a period are ignored. Periods start and end at whole seconds, jobs do not."""


def divide(start: float, end: float, joules: float, periods: Iterable[KnownPart]) -> list[KnownPart]:
    """Divide the energy of a job on one node into parts, one for each period of the node.

    Energy that the periods do not contain is spread evenly over the time of the job that no period covers. If
    there is no such time or no such energy, the energies of the periods are scaled, so that they add up to
    the energy of the job.

    Args:
        start: start of the job on the node, Unix seconds.
        end: end of the job on the node, Unix seconds.
        joules: energy of the job on the node.
        periods: energy of the job in each period of the node, in any order. Periods outside of the time of
            the job are ignored.
    """
    parts = sorted(
        (max(start, begin), min(end, until), energy)
        for begin, until, energy in periods
        if begin < end and until > start
    )
    rest = joules - sum(energy for _, _, energy in parts)
    edges = [(start, start), *((begin, until) for begin, until, _ in parts), (end, end)]
    gaps = [(until, begin) for (_, until), (begin, _) in pairwise(edges) if begin - until >= _MIN_GAP_S]
    if rest > 0 and gaps:
        watts = rest / sum(until - begin for begin, until in gaps)
        return sorted([*parts, *((begin, until, (until - begin) * watts) for begin, until in gaps)])
    return scale(parts, joules) or [(start, end, joules)]


def clip(parts: Sequence[KnownPart], start: float, end: float, joules: float) -> list[KnownPart]:
    """Divide the energy of a step in proportion to the parts of its job's energy during the step.

    Args:
        parts: energy of the job on the node of the step, in ascending order of time.
        start: start of the step, Unix seconds.
        end: end of the step, Unix seconds.
        joules: energy of the step.
    """
    inside = []
    for row in range(bisect_right(parts, start, key=itemgetter(1)), len(parts)):
        begin, until, energy = parts[row]
        if begin >= end:
            break
        first, last = max(start, begin), min(end, until)
        if first < last:
            inside.append((first, last, energy * (last - first) / (until - begin)))
    return scale(inside, joules) or [(start, end, joules)]


def merge_by_minute(parts: Iterable[KnownPart]) -> list[KnownPart]:
    """Add up the energies of parts that begin in the same minute and end in the same minute.

    The nodes of a job start and end at slightly different times. Without the sums, the number of parts would
    grow with the number of nodes. A sum covers the time from the earliest start to the latest end of its
    parts. The sums are returned in ascending order of time.
    """
    sums: dict[tuple[int, int], KnownPart] = {}
    for start, end, joules in parts:
        minutes = int(start // _MERGED_S), int(-(-end // _MERGED_S))
        first, last, total = sums.get(minutes, (start, end, 0.0))
        sums[minutes] = min(first, start), max(last, end), total + joules
    return sorted(sums.values())


def scale(parts: Sequence[KnownPart], joules: float) -> list[KnownPart]:
    """Return the parts with energies that add up to `joules`; an empty list if their energies are all 0."""
    total = sum(energy for _, _, energy in parts)
    return [(start, end, energy * joules / total) for start, end, energy in parts] if total > 0 else []
