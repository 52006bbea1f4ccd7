"""Sums of node-seconds without energy data, and of node-seconds in which nodes were off."""

from __future__ import annotations

from slurm_energy.accounting.usage.groups import COVERAGE, OFF, OFF_UNMEASURED
from slurm_energy.accounting.usage.interval_usage import IntervalUsage
from slurm_energy.accounting.usage.sum_changes import SUM_COLUMNS
from slurm_energy.accounting.usage.usage_queries import WindowUsage


def off_energy(usage: WindowUsage, interval: IntervalUsage) -> dict[str, tuple[int, int | None]]:
    """Return, by cluster, the time for which nodes were powered off, and their energy in this time.

    The time is in node-seconds and the energy in microjoules. The energy is None if it is unknown for any
    part of the time.
    """
    time, energy = SUM_COLUMNS.index("node_seconds"), SUM_COLUMNS.index("total_uj")
    result: dict[str, tuple[int, int | None]] = {}
    for row_id, sums in interval.sums.items():
        key = usage.groups.get(row_id)
        if key is None or key.kind not in (OFF, OFF_UNMEASURED) or not sums[time]:
            continue
        seconds, known = result.get(key.cluster, (0, 0))
        is_known = known is not None and key.kind == OFF
        result[key.cluster] = seconds + sums[time], (known or 0) + sums[energy] if is_known else None
    return result


def missing_node_seconds(usage: WindowUsage, interval: IntervalUsage) -> dict[str, int]:
    """Return for how long nodes delivered no energy in an interval, in node-seconds by cluster.

    The following times are not included:

    - The time in which a node was off, see `off_energy`.
    - The time before the first delivery of a node.
    - The time after the last delivery of a node, unless the node delivered energy in the window of
      the query or can still deliver energy for this window.
    """
    newest = max((node.end for node in usage.nodes), default=0)
    expected: dict[str, int] = {}
    for node in usage.nodes:
        if node.end > interval.start:
            span = min(interval.end, newest) - max(interval.start, node.start)
            expected[node.cluster] = expected.get(node.cluster, 0) + max(0, span)
    index = SUM_COLUMNS.index("node_seconds")
    covered: dict[str, int] = {}
    for row_id, sums in interval.sums.items():
        key = usage.groups.get(row_id)
        if key is not None and key.kind in (COVERAGE, OFF_UNMEASURED):
            covered[key.cluster] = covered.get(key.cluster, 0) + sums[index]
    return {name: max(0, seconds - covered.get(name, 0)) for name, seconds in expected.items()}
