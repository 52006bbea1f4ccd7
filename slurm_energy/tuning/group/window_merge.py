"""Merging of the measurements of all nodes of a job into one measurement of the whole job.

A measurement window is an interval of time in which a node measures the job. Only windows with the same
operating point (settings of the hardware) may be merged.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow

_TRUST: Final = tuple(ProgressSource)


def merge_windows(windows: Collection[ProgressWindow]) -> ProgressWindow:
    """Return the measurement window of a whole job, merged from one window of each of its nodes.

    The speed is that of the slowest node, because this node slows down all others. Often only one rank
    reports the progress of the job. Therefore only the nodes with the most trustworthy source of progress
    are considered for the speed. The power is the sum over the nodes. The mean powers of one GPU and one
    package are means over the nodes.

    Args:
        windows: one measurement window of each node, all at the same operating point; at least one window.
    """
    source = min((window.source for window in windows), key=_TRUST.index)
    slowest = min(
        (window for window in windows if window.source is source), key=lambda window: window.units_per_s
    )
    return ProgressWindow(
        point=slowest.point,
        start_s=max(window.start_s for window in windows),
        duration_s=min(window.duration_s for window in windows),
        units_per_s=slowest.units_per_s,
        relative_error=slowest.relative_error,
        watts=math.fsum(window.watts for window in windows),
        source=source,
        gpu_watts=_mean([window.gpu_watts for window in windows]),
        package_watts=_mean([window.package_watts for window in windows]),
        spans_cycles=slowest.spans_cycles,
    )


def _mean(values: list[float | None]) -> float | None:
    """Return the mean of the known values; None if all values are unknown."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
